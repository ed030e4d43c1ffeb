"""Both ends of the connection to another machine's leader, over TCP."""

import contextlib
import errno
import os
import socket
import threading
import time

import numpy as np
import pytest

from support.slow import slow
from synk.transport.commands import frames
from synk.transport.commands.frames import Frame, Receiver, encode, send
from synk.transport.commands.interfaces import Death, Disconnected
from synk.transport.commands.leader_link import (
    LARGE_BYTES,
    Ended,
    Go,
    Large,
    LeaderEnd,
    LeaderLink,
    Loss,
    size_of,
)
from synk.values import messages
from synk.values.errors import Failure, SynkStateError, SynkTimeout
from synk.values.machine import machines

MACHINE = machines(["one", "two"], [2, 3])[1]
REPLY = messages.Reply((b"x" * 1000,), None)
LARGE = np.random.default_rng(0).integers(0, 256, 8 << 20, "u1")  # more than fits in the buffers of a socket
PATIENCE = 20.0  # seconds


class GivenUp(Exception):
    """The error of patience here."""


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    theirs.settimeout(PATIENCE)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def link(ends):
    return LeaderLink(MACHINE, ends[0])


@pytest.fixture
def leader(ends):
    return LeaderEnd(ends[1])


@pytest.fixture
def meanwhile():
    """Start work on a thread; it has ended when the test has."""
    threads = []

    def start(work, *arguments):
        threads.append(threading.Thread(target=work, args=arguments))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def content(message):
    return b"".join(bytes(memoryview(part)) for part in encode(message).parts)


def give_up():
    raise GivenUp


# --- what comes from the leader ------------------------------------------------------------------


def test_replies_are_taken_when_they_come(link, leader):
    link.look()
    assert link.replies is None
    leader.reply([REPLY])
    link.look(PATIENCE)
    assert [reply.results for reply in link.replies] == [REPLY.results]
    assert link.loss is None
    assert not link.torn


def test_a_worker_that_died_there_is_a_loss_but_not_of_the_machine(link, leader):
    loss = Loss(3, Death(10, "SIGKILL on host two", "computing", ""))
    leader.reply(loss)
    link.look(PATIENCE)
    assert link.loss == loss
    assert link.replies is None
    assert not link.is_cut


def test_a_leader_that_is_gone_is_a_lost_machine(link, ends):
    link.pids = (50, 51, 52)
    ends[1].close()
    link.look(PATIENCE)
    assert (link.loss.rank, link.loss.death.pid, link.loss.death.lost) == (2, 50, MACHINE)
    assert link.is_cut
    link.send(encode("anyone?"))  # raises nothing: `look` has found it out
    assert not link.torn


def test_a_leader_that_is_gone_is_found_out_by_sending_too(link, ends):
    ends[1].close()
    send_often(link, "anyone?")  # the first goes out: only its answer says that nobody is there
    assert link.is_cut


def test_the_death_of_a_worker_stays_the_loss_when_its_leader_goes(link, leader):
    loss = Loss(3, Death(10, "SIGKILL on host two", "computing", ""))
    leader.reply(loss)
    leader.close()
    link.look(PATIENCE)
    link.look(PATIENCE)
    assert link.loss == loss


def raise_value_error():
    raise ValueError("cannot be unpickled")


class Explosive:
    def __reduce__(self):
        return raise_value_error, ()


def test_what_does_not_unpickle_is_kept_as_the_reply_and_the_stream_goes_on(link, leader):
    leader.reply([Explosive()])
    link.look(PATIENCE)
    assert isinstance(link.replies, ValueError)
    assert not link.torn
    leader.reply([REPLY])
    link.look(PATIENCE)
    assert [reply.results for reply in link.replies] == [REPLY.results]


# --- frames in part --------------------------------------------------------------------------------


def test_half_a_frame_calls_patience_which_leaves_the_link_torn(link, ends):
    link.patience = give_up
    ends[1].sendall(content([REPLY])[:500])
    with pytest.raises(GivenUp):
        link.look(PATIENCE)
    assert link.torn


def test_looking_in_the_middle_of_a_frame_takes_nothing(link, ends):
    def interrupt():
        link.look()  # as whoever watches over the run does meanwhile
        raise KeyboardInterrupt

    whole = content([REPLY])
    link.patience = interrupt
    ends[1].sendall(whole[:500])
    with pytest.raises(KeyboardInterrupt):
        link.look(PATIENCE)
    link.patience = give_up
    ends[1].sendall(whole[500:])
    link.look(PATIENCE)  # a reader that went on in here would wait, and give up, or read nonsense
    assert link.torn
    assert link.replies is None
    assert link.loss is None


def test_the_rest_of_a_frame_that_comes_late_makes_it_whole(link, ends):
    whole = content([REPLY])
    rest = [whole[500:]]

    def send_rest():
        if rest:
            ends[1].sendall(rest.pop())

    link.patience = send_rest
    ends[1].sendall(whole[:500])
    link.look(PATIENCE)
    assert [reply.results for reply in link.replies] == [REPLY.results]
    assert not link.torn


@pytest.mark.parametrize("sends", [False, True])
def test_a_deadline_in_the_middle_of_a_frame_is_no_lost_machine(link, ends, sends):
    """SynkTimeout is a TimeoutError, and so an OSError, as the errors of sockets are."""

    def late():
        raise SynkTimeout(5.0, "f", (2,), ())

    link.patience = late
    ends[1].sendall(content([REPLY])[:500])
    with pytest.raises(SynkTimeout):
        send_often(link, b"x" * 1000) if sends else link.look(PATIENCE)
    assert link.torn
    assert link.loss is None


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_a_connection_that_the_kernel_cuts_is_a_lost_machine(link, monkeypatch, number):
    def cut(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(frames, "_send_some", cut)
    link.send(encode("anyone?"))
    assert link.is_cut


# --- large frames ----------------------------------------------------------------------------------


def test_a_large_frame_is_announced_and_waits_for_the_leader(link, ends, meanwhile):
    sending = meanwhile(link.send, encode(LARGE))
    receiver = Receiver(ends[1])
    assert receiver.receive()[0] == Large()
    sending.join(0.05)
    assert sending.is_alive()
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):  # nothing more has come
        ends[1].recv(1)
    ends[1].settimeout(PATIENCE)
    send(ends[1], encode(Go()))
    np.testing.assert_array_equal(receiver.receive()[0], LARGE)


def test_a_large_reply_is_announced_and_waits_for_the_master(ends, leader, meanwhile):
    replying = meanwhile(leader.reply, LARGE)
    receiver = Receiver(ends[0])
    assert receiver.receive()[0] == Large()
    replying.join(0.05)
    assert replying.is_alive()
    ends[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[0].recv(1)
    ends[0].setblocking(True)
    send(ends[0], encode(Go()))
    np.testing.assert_array_equal(receiver.receive()[0], LARGE)


def test_the_size_of_a_frame_is_that_of_all_its_parts():
    assert size_of(Frame([bytes(100), np.zeros(1)])) == 108


@pytest.mark.parametrize("heard", [None, Ended(), [REPLY]], ids=str)
def test_many_frames_wait_for_a_leader_that_has_not_shown_that_it_reads(link, ends, meanwhile, heard):
    frame = encode(b"x" * (LARGE_BYTES // 2))
    receiver = Receiver(ends[1])
    link.send(frame)
    if heard is not None:
        send(ends[1], encode(heard))
        link.look(PATIENCE)
    sending = meanwhile(link.send, frame)
    received = [receiver.receive()[0] for _ in range(2)]
    if isinstance(heard, list):
        assert received[1] != Large()
    else:
        assert received[1] == Large()
        send(ends[1], encode(Go()))
    sending.join(PATIENCE)
    assert not sending.is_alive()


def test_both_ends_have_large_frames_for_each_other(link, leader, meanwhile):
    """A leader replies to nothing but commands, but the master may have gone on, left by an exception."""
    received = []

    def lead():
        received.append(leader.receive()[0])
        leader.reply(LARGE[::-1].copy())

    meanwhile(lead)
    link.send(encode(LARGE))
    while link.replies is None:
        link.look(PATIENCE)
    np.testing.assert_array_equal(received[0], LARGE)
    np.testing.assert_array_equal(link.replies, LARGE[::-1])


@pytest.mark.parametrize("large", [slow(False), True])
def test_patience_ends_a_send_to_a_leader_that_does_not_read(link, ends, large):
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link.patience = give_up
    with pytest.raises(GivenUp):
        send_often(link, LARGE if large else b"x" * 1000)
    assert link.torn


def send_often(link, message):
    for _ in range(10_000):
        link.send(encode(message))


def test_a_master_that_goes_on_instead_of_reading_a_large_reply_is_gone(ends, leader):
    send(ends[0], encode(messages.Forget(1)))
    with pytest.raises(Disconnected):
        leader.reply(LARGE)


class Unknown:
    """Of a module that the other machine does not have."""

    def __reduce__(self):
        return int, ("no number",)


def test_what_does_not_unpickle_comes_as_what_that_raised(link, leader):
    link.send(encode(Unknown()))
    link.send(encode("next"))
    message, _ = leader.receive()
    assert isinstance(message, ValueError)
    assert leader.receive() == ("next", None)


# --- ends ------------------------------------------------------------------------------------------


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("not this one")


def test_a_reply_that_does_not_pickle_is_raised_and_nothing_was_sent(link, leader):
    with pytest.raises(RuntimeError, match="not this one"):
        leader.reply([np.zeros(LARGE_BYTES), Unpicklable()])
    leader.reply([REPLY])
    link.look(PATIENCE)
    assert [reply.results for reply in link.replies] == [REPLY.results]


def test_a_leader_knows_whether_something_has_come(link, leader):
    assert not leader.pending()
    link.send(encode(messages.Forget(1)))
    assert leader.pending()
    assert leader.receive() == (messages.Forget(1), None)
    assert not leader.pending()


def test_a_close_is_seen_behind_bytes_that_were_not_read(link, leader):
    assert not leader.hung_up()
    link.send(encode(messages.Close()))
    assert not leader.hung_up()
    link.close()
    assert leader.hung_up()
    assert leader.receive()[0] == messages.Close()
    with pytest.raises(Disconnected):
        leader.receive()


@pytest.mark.parametrize("large", [False, True])
def test_a_leader_learns_that_the_master_is_gone(ends, leader, large):
    ends[0].close()
    with pytest.raises(Disconnected):
        reply_often(leader, LARGE if large else REPLY)
    with pytest.raises(Disconnected):
        leader.receive()


def reply_often(leader, message):
    for _ in range(10_000):
        leader.reply(message)


def test_a_leader_is_told_the_end_once(link, leader):
    link.dismiss()
    link.close()
    link.dismiss()
    assert leader.receive()[0] == messages.Close()
    assert link.loss is None


def test_a_leader_that_does_not_read_is_not_waited_for_at_the_end(link, ends):
    link.patience = give_up
    fill_buffers(ends[0])
    link.dismiss()
    assert link.is_cut


def fill_buffers(end):
    """Send until nothing fits in any more; the kernel makes room for some time."""
    patience = end.gettimeout()
    end.settimeout(0.1)
    with contextlib.suppress(TimeoutError):
        while end.send(bytes(1 << 16)):
            pass
    end.settimeout(patience)


# --- the greeting ----------------------------------------------------------------------------------


def greeted(link):
    """Return the greeting, for which to wait."""
    link.hear(time.monotonic() + PATIENCE)
    return link.greet(PATIENCE)


def test_the_greeting_says_who_and_where_the_ranks_are(link, leader):
    leader.reply(((50, 51, 52), "the placement"))
    assert greeted(link) == "the placement"
    assert link.pids == (50, 51, 52)
    assert link.replies is None


def test_a_greeting_may_be_large(link, leader, meanwhile):
    meanwhile(leader.reply, (tuple(range(20_000, 50_000)), "the placement"))
    assert greeted(link) == "the placement"
    assert len(link.pids) == 30_000


def test_a_host_that_could_not_start_its_ranks_says_why(link, leader):
    leader.reply(Failure(2, OSError, "OSError: no process", "the traceback"))
    with pytest.raises(SynkStateError, match="host two could not start its ranks: OSError: no process"):
        greeted(link)


def test_a_host_that_the_launcher_ends_is_not_the_one_that_was_lost(link, leader):
    leader.say_ended()
    leader.close()
    with pytest.raises(SynkStateError, match="another host was lost .*: the launcher has ended two, too"):
        greeted(link)


def test_a_host_that_does_not_start_its_ranks_is_named(link, ends):
    with pytest.raises(SynkStateError, match="host two has not started its ranks within 60 s"):
        link.greet(60.0)
    ends[1].close()
    with pytest.raises(SynkStateError, match="host two was lost while its ranks started"):
        greeted(link)
