"""Messages to all machines: leaders at the ends of socket pairs, and a stand-in for the workers here."""

import socket
import threading

import numpy as np
import pytest

from synk.transport.commands.interfaces import Death
from synk.transport.commands.leader_link import LeaderEnd, LeaderLink, Loss
from synk.transport.commands.machines_channel import MachinesChannel
from synk.transport.commands.mirror import Mirror, write
from synk.transport.commands.steps import KnownSteps
from synk.transport.memory.segments import SegmentTable
from synk.values import messages
from synk.values.machine import machines

PATIENCE = 20.0  # seconds
HERE, *OTHERS = machines(["one", "two", "three"], [2, 1, 2])


class Here:
    """Stands for the channel to this machine's workers: it answers at once, and notes what it was told."""

    torn = waiting = False

    def __init__(self):
        self.told = []
        self.answer = reply(1)

    def command(self, command):
        self.waiting = True
        self.told.append(command)

    def post(self, message, descriptor=None):
        self.told.append(message)

    def collect(self, seconds=None):
        assert self.waiting, "the replies of one command are collected once"
        self.waiting = False
        if isinstance(self.answer, Exception):  # as of unpickling it
            raise self.answer
        return [self.answer]

    def close(self):
        self.told.append("closed")


class OtherLeaders:
    """Stands for what exchanges arrays: it notes which segments are shared."""

    def __init__(self):
        self.shared = set()

    def share(self, number, segment):
        self.shared.add(number)

    def unshare(self, number):
        self.shared.discard(number)

    def push(self, seconds):
        return False


class Dead(Exception):
    """The error of ``on_death`` here, with the rank."""


def die(rank):
    raise Dead(rank)


def reply(rank):
    return messages.Reply((rank,), None)


def results(replies):
    return [one.results[0] for one in replies]


class Run:
    """The master's channel, and the leaders of two other machines."""

    def __init__(self):
        pairs = [socket.socketpair() for _ in OTHERS]
        for _, theirs in pairs:
            theirs.settimeout(PATIENCE)
        self.links = [LeaderLink(machine, ours) for machine, (ours, _) in zip(OTHERS, pairs, strict=True)]
        self.ends = [LeaderEnd(theirs) for _, theirs in pairs]
        self.here, self.leaders, self.late = Here(), OtherLeaders(), []
        self.segments = SegmentTable(lambda *what: self.channel.post(*what), lambda what: None)
        self.mirror = Mirror(self.segments, OTHERS)
        self.channel = MachinesChannel(self.here, self.links, self.mirror, self.leaders, die, self.on_late)
        self._number = 0

    def on_late(self, ranks):
        self.late.append(list(ranks))

    def command(self, *steps):
        self._number += 1
        self.channel.command(messages.Command(self._number, steps))

    def close(self):
        for end in (*self.links, *self.ends):
            end.close()
        self.segments.close()


@pytest.fixture
def run():
    run = Run()
    yield run
    run.close()


def read(ref):
    return messages.Call(1, (ref,), None, (), None, None, 1)


def test_a_command_is_one_frame_to_each_machine(run):
    run.command(messages.Compile(()))
    for end in run.ends:
        relay, _ = end.receive()
        assert relay == messages.Relay((), 1, relay.steps, 0, 0)
        assert KnownSteps().of(relay.steps) == (messages.Compile(()),)
        assert not end.pending()
    assert run.here.told == [messages.Command(1, (messages.Compile(()),))]


def test_replies_are_in_rank_order_whichever_machine_answers_first(run):
    for order in ((0, 1), (1, 0)):
        run.command(messages.Compile(()))
        assert run.channel.waiting
        for machine in order:
            run.ends[machine].reply([reply(rank) for rank in OTHERS[machine].ranks])
        assert results(run.channel.collect()) == [1, 2, 3, 4]
        assert not run.channel.waiting
        assert not run.channel.torn


def test_a_relay_brings_what_has_changed(run):
    number = run.segments.allocate(80)
    ref = messages.ArrayRef(number, "<f8", (10,))
    there = SegmentTable(lambda *what: None)
    there.make(run.ends[0].receive()[0])
    run.segments.array(ref)[:] = 7
    run.command(read(ref))
    write(run.ends[0].receive()[0].fills, there)
    assert there.array(ref).tolist() == [7.0] * 10
    run.command(read(ref))
    assert run.ends[0].receive()[0].fills == ()
    there.close()


def test_segments_are_shared_between_machines_until_they_are_detached(run, monkeypatch):
    forgotten = []
    monkeypatch.setattr(run.mirror, "forget", forgotten.append)
    number = run.segments.allocate(80)
    assert run.leaders.shared == {number}
    run.channel.post(messages.Several((messages.Forget(1), messages.Detach(number))))
    assert run.leaders.shared == set()
    assert forgotten == [number]


def test_a_message_in_the_middle_of_a_command_stays_on_this_machine(run):
    """It is what workers wait for here; other machines make it for themselves."""
    run.command(messages.Compile(()))
    number = run.segments.allocate(80)
    assert run.here.told[1:] == [messages.Attach(number, 80)]
    for machine, end in zip(OTHERS, run.ends, strict=True):
        assert isinstance(end.receive()[0], messages.Relay)
        assert not end.pending()
        end.reply([reply(rank) for rank in machine.ranks])
    run.channel.collect()
    run.channel.post(messages.Forget(1))
    assert [end.receive()[0] for end in run.ends] == [messages.Forget(1)] * 2


def test_a_deadline_raises_timeout_error_and_collect_can_be_called_again(run):
    run.command(messages.Compile(()))
    run.ends[1].reply([reply(3), reply(4)])
    with pytest.raises(TimeoutError, match="not all machines have answered"):
        run.channel.collect(0.05)
    assert run.channel.waiting
    assert not run.channel.torn
    run.ends[0].reply([reply(2)])
    assert results(run.channel.collect()) == [1, 2, 3, 4]


def test_the_ranks_that_are_late_are_told_those_of_the_machine_that_has_not_answered(run):
    run.command(messages.Compile(()))
    run.ends[0].reply([reply(2)])
    later = threading.Timer(0.3, run.ends[1].reply, [[reply(3), reply(4)]])
    later.start()
    run.channel.collect()
    later.join()
    assert run.late[-1] == [3, 4]


def test_all_machines_that_have_not_answered_are_late(run):
    run.command(messages.Compile(()))
    with pytest.raises(TimeoutError):
        run.channel.collect(0.05)
    assert run.late[-1] == [2, 3, 4]


def test_a_message_that_does_not_pickle_leaves_the_run_as_it_was(run):
    with pytest.raises(Exception, match="pickle"):
        run.channel.post(messages.Forget(threading.Lock()))
    assert not run.channel.torn
    run.channel.post(messages.Forget(1))
    assert [end.receive()[0] for end in run.ends] == [messages.Forget(1)] * 2


def test_late_in_the_middle_of_a_frame_are_the_ranks_of_its_machine(run):
    run.command(messages.Compile(()))
    run.ends[1].reply([reply(3), reply(4)])
    run.ends[0]._end.sendall(b"half a head")
    with pytest.raises(TimeoutError):
        run.channel.collect(0.3)
    assert run.channel.torn
    assert run.late[-1] == [2]


@pytest.mark.parametrize("lost", ["a worker", "a machine"])
def test_a_loss_calls_on_death_with_its_rank(run, lost):
    run.command(messages.Compile(()))
    if lost == "a worker":
        run.ends[1].reply(Loss(4, Death(10, "SIGKILL", "computing", "")))
    else:
        run.ends[1].close()
    with pytest.raises(Dead, match="4" if lost == "a worker" else "3"):
        run.channel.collect()


@pytest.mark.parametrize("itself", [True, False])
def test_a_launcher_s_end_is_not_taken_for_that_of_a_machine(run, itself):
    """It ends all leaders, as it does those that are left where one machine is lost."""
    run.command(messages.Compile(()))
    run.ends[0].say_ended()
    if itself:
        run.ends[1].say_ended()
    for end in run.ends:
        end.close()
    with pytest.raises(Dead, match="2" if itself else "3"):
        run.channel.collect()
    causes = [link.loss.death.cause for link in run.links]
    assert [cause.startswith("ended by SIGTERM") for cause in causes] == [itself, False]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_replies_that_do_not_unpickle_are_raised_once_all_have_answered(run, where):
    run.command(messages.Compile(()))
    if where == "here":
        run.here.answer = ZeroDivisionError("as of unpickling")
    run.ends[0].reply([reply(2)] if where == "here" else Explosive())
    run.ends[1].reply([reply(3), reply(4)])
    with pytest.raises(ZeroDivisionError):
        run.channel.collect()
    assert not run.channel.waiting
    assert not run.channel.torn
    run.here.answer = reply(1)
    run.command(messages.Compile(()))
    for machine, end in zip(OTHERS, run.ends, strict=True):
        end.reply([reply(rank) for rank in machine.ranks])
    assert results(run.channel.collect()) == [1, 2, 3, 4]


class Explosive:
    def __reduce__(self):
        return divmod, (1, 0)


def test_a_command_that_does_not_pickle_is_sent_to_nobody(run):
    with pytest.raises((AttributeError, TypeError, ValueError), match="pickle"):
        run.command(threading.Lock())
    assert run.here.told == []
    assert not any(end.pending() for end in run.ends)
    assert not run.channel.torn


def test_a_command_that_was_interrupted_on_its_way_is_torn(run):
    run.links[0].patience = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.command(messages.Share(1, np.ndarray, None, None, np.zeros(1 << 20)))
    assert run.channel.torn


def interrupt():
    raise KeyboardInterrupt


def test_closing_closes_the_channel_of_this_machine(run):
    run.channel.close()
    assert run.here.told == ["closed"]
