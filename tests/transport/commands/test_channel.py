import contextlib
import os
import socket
import threading

import numpy as np
import pytest

from support.processes import leaks
from support.transport.parts import Channels
from synk.transport.commands.frames import HEAD, INLINE_BYTES, Disconnected, Receiver, encode, send
from synk.transport.memory.shm import Segment
from synk.values import messages
from synk.values.errors import SharedMemoryFull

LARGE = 3 * INLINE_BYTES


def open_descriptors():
    return set(leaks.descriptors())


class Dead(Exception):
    """The error of the master's ``on_death`` here, with the rank."""


def die(rank):
    raise Dead(rank)


class FakeProcess:
    """Stands for a worker's process: its life ends when a test says so."""

    def __init__(self):
        self._descriptor = os.eventfd(0)

    def fileno(self):
        return self._descriptor

    def end(self):
        os.eventfd_write(self._descriptor, 1)

    def close(self):
        os.close(self._descriptor)


class Crew(Channels):
    """A master's channel and, at its other ends, the workers' of ``n_workers`` fake processes."""

    def __init__(self, n_workers, on_death=die):
        self.processes = [FakeProcess() for _ in range(n_workers)]
        super().__init__(self.processes, on_death)

    def leave(self, rank):
        """Close a worker's end, as the end of its process does."""
        self.ends[rank - 1][1].close()

    def close(self):
        super().close()
        for process in self.processes:
            process.close()


@pytest.fixture
def crew():
    """Make a crew on call; it is closed with the test."""
    with contextlib.ExitStack() as stack:

        def make(n_workers, on_death=die):
            return stack.enter_context(contextlib.closing(Crew(n_workers, on_death)))

        yield make


@pytest.fixture
def ends(crew):
    """The master's end of a socket pair, and the channel of the worker at the other."""
    there = crew(1)
    return there.ends[0][0], there.workers[0]


def meanwhile(work, *arguments):
    """Start ``work`` on a thread: what is large does not fit into a socket at once."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


def same(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    np.testing.assert_array_equal(one, other)


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.array(2.5),
    np.zeros((0, 4), "f4"),
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.arange(20)[::-3],
    np.arange(LARGE, dtype="u1"),
    np.arange(LARGE, dtype="f2").reshape(-1, 3).T,
    np.random.default_rng(0).normal(size=(300, 1001)).astype("f4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{array.shape}")
def test_arrays_go_to_the_worker_and_come_back(crew, array):
    there = crew(1)
    message = messages.Share(1, dict, None, "w", {"value": array, "again": [array]})
    posting = meanwhile(there.master.post, message)
    arrived, descriptor = there.workers[0].receive()
    posting.join()
    assert type(arrived) is messages.Share
    assert descriptor is None
    same(arrived.value["value"], array)
    assert arrived.value["value"].flags.writeable
    replying = meanwhile(there.workers[0].reply, messages.Reply((arrived.value,), None))
    [reply] = there.master.collect()
    replying.join()
    assert type(reply) is messages.Reply
    same(reply.results[0]["value"], array)
    same(reply.results[0]["again"][0], array)


def test_messages_arrive_one_by_one_and_in_order(crew):
    there = crew(2)
    posted = [messages.Attach(1, 5), messages.Detach(1), messages.Command(1, (messages.Compile((1, 2)),))]
    for message in posted:
        there.master.post(message)
    for worker in there.workers:
        assert [worker.receive()[0] for _ in posted] == posted


def test_what_is_read_only_arrives_whole(crew):
    there = crew(1)
    array = np.arange(5)
    array.setflags(write=False)
    there.master.post(messages.Share(1, dict, None, None, (array, b"bytes", bytearray(b"more"))))
    assert there.workers[0].receive()[0].value[1:] == (b"bytes", bytearray(b"more"))


def test_a_worker_knows_whether_something_has_come(ends):
    theirs = ends[1]
    assert not theirs.pending()
    send(ends[0], encode("word"))
    assert theirs.pending()
    assert theirs.receive()[0] == "word"
    assert not theirs.pending()


@pytest.mark.parametrize("over", [0, 1])
def test_large_replies_go_through_the_outbox_and_others_do_not(ends, over):
    theirs = ends[1]
    before = open_descriptors()
    array = np.arange(INLINE_BYTES + over, dtype="u1")
    replying = meanwhile(theirs.reply, array)
    head = HEAD.unpack(ends[0].recv(HEAD.size, socket.MSG_WAITALL | socket.MSG_PEEK))
    assert head[1:] == ((1, INLINE_BYTES + 1) if over else (1, 0))
    receiver = Receiver(ends[0])
    same(receiver.receive()[0], array)
    replying.join()
    receiver.close()
    if not over:
        assert open_descriptors() == before


def test_replies_do_not_change_with_the_next_one(crew):
    there = crew(1)
    kept = []
    for number in range(5):
        there.workers[0].reply([np.full(LARGE, number, "u1"), np.full(LARGE, 10 + number, "u1")])
        kept += there.master.collect()
    for number, (one, other) in enumerate(kept):
        assert set(one.tolist()) == {number}
        assert set(other.tolist()) == {10 + number}


def test_the_outbox_is_used_again_and_grows(crew):
    there = crew(1)
    counts = []
    for nbytes in (LARGE, LARGE - 1000, 2 * LARGE, 2 * LARGE, INLINE_BYTES + 1, 10, 3 * LARGE):
        array = np.random.default_rng(nbytes).integers(0, 256, nbytes, "u1")
        there.workers[0].reply((array[: nbytes // 3].copy(), "between", array))
        [(third, between, whole)] = there.master.collect()
        same(third, array[: nbytes // 3])
        same(whole, array)
        assert between == "between"
        counts.append(len(open_descriptors()))
    assert len(set(counts)) == 1


def test_a_full_outbox_leaves_the_channel_usable(monkeypatch, crew):
    there = crew(1)

    def refuse(nbytes):
        raise SharedMemoryFull(f"needed {nbytes}")

    monkeypatch.setattr(Segment, "create", refuse)
    with pytest.raises(SharedMemoryFull, match=f"needed {LARGE}"):
        there.workers[0].reply(np.zeros(LARGE, "u1"))
    monkeypatch.undo()
    there.workers[0].reply("it was full")
    assert there.master.collect() == ["it was full"]
    there.workers[0].reply(np.ones(LARGE, "u1"))
    assert there.master.collect()[0].all()


def test_a_descriptor_goes_with_its_message(crew):
    there = crew(2)
    file = os.memfd_create("test")
    there.master.post(messages.Attach(1, 10), file)
    there.master.post(messages.Detach(1))
    for worker in there.workers:
        message, descriptor = worker.receive()
        assert message == messages.Attach(1, 10)
        assert descriptor != file
        assert os.path.sameopenfile(descriptor, file)
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
        assert worker.receive() == (messages.Detach(1), None)
    os.close(file)


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not this one")


def test_what_does_not_pickle_is_sent_to_nobody_and_leaves_nothing_behind(crew):
    there = crew(3)
    with pytest.raises(RuntimeError, match="not this one"):
        there.master.post(messages.Build(1, ["fine", Unpicklable()]))
    there.master.post(messages.Forget(1))
    for worker in there.workers:
        assert worker.receive() == (messages.Forget(1), None)
        with pytest.raises(RuntimeError, match="not this one"):
            worker.reply((np.zeros(LARGE), Unpicklable()))
        worker.reply("fine")
    assert there.master.collect() == ["fine"] * 3


def test_a_message_is_pickled_once_for_all(crew):
    pickled = []

    class Counted:
        def __reduce__(self):
            pickled.append(1)
            return (int, ())

    there = crew(3)
    there.master.post(messages.Build(1, Counted()))
    assert len(pickled) == 1


@pytest.mark.parametrize("left", ["nothing", "a message", "unread"])
def test_a_worker_learns_that_the_master_is_gone(ends, left):
    theirs = ends[1]
    if left == "a message":
        send(ends[0], encode(messages.Forget(1)))
    if left == "unread":
        theirs.reply("never read")  # so that the kernel resets the connection
    ends[0].close()
    if left == "a message":
        assert theirs.receive()[0] == messages.Forget(1)
    with pytest.raises(Disconnected):
        theirs.receive()
    with pytest.raises(Disconnected):
        theirs.reply("anyone?")


FRAME = b"".join(encode({"x": np.arange(10)}).parts)


def test_replies_are_in_rank_order_not_in_that_of_arrival(crew):
    there = crew(4)
    for order in ((3, 1, 4, 2), (2, 4, 1, 3)):
        for rank in order:
            there.workers[rank - 1].reply(rank)
        assert there.master.collect() == [1, 2, 3, 4]


def test_a_second_reply_waits_for_the_second_collect(crew):
    there = crew(2)
    there.workers[0].reply("first")
    there.workers[0].reply("second")
    later = threading.Timer(0.05, there.workers[1].reply, ["late"])
    later.start()
    assert there.master.collect() == ["first", "late"]
    later.join()
    there.workers[1].reply("in time")
    assert there.master.collect() == ["second", "in time"]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("closes", [False, True])
def test_a_death_or_an_end_that_closes_is_told_by_rank(crew, rank, closes):
    there = crew(3)
    for other in {1, 2, 3} - {rank}:
        there.workers[other - 1].reply("fine")
    there.leave(rank) if closes else there.processes[rank - 1].end()
    with pytest.raises(Dead, match=rf"^{rank}$"):
        there.master.collect()
    if closes:
        with pytest.raises(Dead, match=rf"^{rank}$"):
            there.master.post(messages.Forget(1))
    else:
        assert not there.master.torn


happened = []


def note(what):
    happened.append(what)


class Noted:
    """Notes the moment it is unpickled."""

    def __reduce__(self):
        return note, ("reply",)


def test_what_a_worker_said_before_it_died_still_counts(crew):
    happened.clear()
    there = crew(1, on_death=lambda rank: happened.append(f"death of {rank}"))
    there.workers[0].reply(Noted())
    there.processes[0].end()
    assert there.master.collect() == [None]
    assert set(happened) == {"death of 1", "reply"}


def test_collect_can_be_called_again_after_an_interruption(crew):
    interruptions = []

    def interrupt(rank):
        interruptions.append(rank)
        raise KeyboardInterrupt

    there = crew(3, interrupt)
    there.workers[2].reply("three")
    there.processes[0].end()
    with pytest.raises(KeyboardInterrupt):
        there.master.collect()
    assert not there.master.torn
    os.eventfd_read(there.processes[0].fileno())
    there.workers[0].reply("one")
    there.workers[1].reply("two")
    assert there.master.collect() == ["one", "two", "three"]
    assert interruptions == [1]


def test_a_reply_that_was_read_in_part_is_told(crew):
    there = crew(1)
    _, theirs = there.ends[0]
    theirs.sendall(FRAME[:-1])
    assert not there.master.torn
    with pytest.raises(TimeoutError):
        there.master.collect(0.05)
    assert there.master.torn


def explode():
    raise ValueError("cannot be unpickled")


class Explosive:
    def __reduce__(self):
        return explode, ()


def test_a_reply_that_does_not_unpickle_was_read_whole(crew):
    there = crew(1)
    there.workers[0].reply(Explosive())
    with pytest.raises(ValueError, match="cannot be unpickled"):
        there.master.collect()
    assert not there.master.torn  # so the session may go on ...
    there.workers[0].reply("fine")
    assert there.master.collect() == ["fine"]  # ... and the stream is in order


def test_a_run_of_one_rank_has_no_connections(crew):
    there = crew(0)
    there.master.post(Unpicklable())
    assert there.master.collect() == []
