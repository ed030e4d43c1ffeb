"""Links over sockets: the suite of all leaders, and messages that are cut, large, or to nobody."""

import array
import contextlib
import gc
import itertools
import os
import signal
import socket
import time

import pytest

from support.machines.leaders import thread_leaders
from support.machines.suite import LeadersSuite, gather
from support.slow import slow
from support.transport.parts import nothing, on_threads
from synk.transport.commands.interfaces import Aborted
from synk.transport.machines import socket_links
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.socket_links import SocketLinks
from synk.values.errors import LinkLost


def linked(n_machines):
    """Return the links of so many machines to each other."""
    ends = [{} for _ in range(n_machines)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for one, other in itertools.combinations(range(n_machines), 2):
            ends[one][other] = socket.create_connection(server.getsockname())
            ends[other][one], _ = server.accept()
            for end in (ends[one][other], ends[other][one]):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return [SocketLinks(machine, ends) for machine, ends in enumerate(ends)]


class SocketGroup:
    """Machines that are threads, whose messages go over sockets."""

    def __init__(self, n_machines):
        self.n_machines = n_machines
        arrays = [leaders.links for leaders in thread_leaders(n_machines)]
        self.leaders = list(map(LinkedLeaders, linked(n_machines), map(MachineAllReduce, arrays)))
        self._command = 0

    def outcomes(self, work, *arguments):
        """Run one command; return what each machine returned or raised."""
        self._command += 1
        at_work = set(range(self.n_machines))

        def run(machine):
            leaders = self.leaders[machine]
            leaders.begin(self._command)
            try:
                return work(leaders, nothing, *arguments)
            finally:
                at_work.remove(machine)
                while at_work and leaders.push(0.01):  # as leaders do that wait for the master
                    pass

        return on_threads(self.n_machines, run)

    def close(self):
        for leaders in self.leaders:
            leaders.close()


class TestSockets(LeadersSuite):
    @pytest.fixture(params=[slow(1), slow(2), 3, slow(5)], ids="{}-machines".format)
    def group(self, request):
        group = SocketGroup(request.param)
        yield group
        group.close()

    def test_who_waits_is_woken_up(self, group, monkeypatch):
        """No nap, and no look at anything else, ends the wait."""
        monkeypatch.setattr("synk.transport.machines.linked_leaders.WATCH_SECONDS", 100.0)
        began = time.monotonic()
        self.results(group, come_one_by_one)
        assert time.monotonic() - began < 50


def come_one_by_one(leaders, watch):
    for machine in range(leaders.n_machines):
        if leaders.machine == machine:
            time.sleep(0.02)
        gather(leaders, watch, [10])


@pytest.fixture
def two():
    links = linked(2)
    yield links
    for one in links:
        one.close()


def received(links):
    """Return the messages that have arrived."""
    while links.rest(0):
        pass
    found = []
    links.receive(lambda _, message: found.append(bytes(message)))
    return found


def test_messages_arrive_whole_and_in_order_however_they_are_cut(two, monkeypatch):
    one, other = two
    monkeypatch.setattr(socket_links, "RECEIVED_BYTES", (5, 7))
    sent = [bytes([n % 256]) * n for n in (1, 20, 0, 2, 300, 3, 3)]
    for message in sent:
        one.send(1, message)
    assert received(other) == sent
    assert received(other) == []


def test_a_large_message_leaves_as_the_other_end_reads(two):
    one, other = two
    message = os.urandom(10_000_000)
    one.send(1, message)
    one.send(1, b"next")
    assert one.push(0.01), "more than fits in the buffers of a socket"
    found = []
    while one.push(0.01):
        found += received(other)
    assert found + received(other) == [message, b"next"]
    assert not one.unsent()


@pytest.mark.parametrize("nbytes", [10, 10_000_000])
def test_a_machine_that_is_gone_is_silent(nbytes):
    one, other, third = linked(3)
    one.send(1, b"before")
    one.send(2, bytes(nbytes))
    third.close()
    for _ in range(3):
        one.send(2, b"to nobody")
    assert received(other) == [b"before"]
    while one.rest(0.1):
        assert one.unsent() or one.cut(), "its end is noticed once"
    assert not one.unsent()
    assert one.cut() == ["127.0.0.1"]
    for links in (one, other):
        links.close()


def test_a_send_finds_out_that_a_machine_is_gone(two):
    one, other = two
    other.close()
    # The first message is answered by a reset; the links do not read it, as they do not rest.
    deadline = time.monotonic() + 10
    while not one.cut():
        assert time.monotonic() < deadline
        one.send(1, b"to nobody")
    assert not one.unsent()


def test_a_machine_that_does_not_read_is_not_cut(two, monkeypatch):
    monkeypatch.setattr(socket_links, "SILENCE_MS", 200)
    one, _ = two
    one.send(1, bytes(10_000_000))
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        one.push(0.01)
        assert one.cut() == []
    assert one.unsent()


def test_a_lost_way_ends_the_wait_of_both_ends():
    group = SocketGroup(3)
    group.outcomes(gather, [10])
    group.leaders[1]._links._ways[2].end.shutdown(socket.SHUT_RDWR)
    _, *outcomes = group.outcomes(lose)  # the first may have heard of all before
    assert {LinkLost} <= set(map(type, outcomes)) <= {LinkLost, Aborted}
    assert "no connection to 127.0.0.1 any more" in "".join(map(str, outcomes))
    group.close()


def lose(leaders, watch):
    try:
        return leaders.all_gather(b"", watch)
    except (Aborted, LinkLost) as error:
        leaders.fail()  # as ranks do
        return error


def test_a_push_sends_on_even_if_it_may_take_no_time(two):
    one, other = two
    one.send(1, bytes(10_000_000))
    deadline = time.monotonic() + 20
    while one.push(0.0):
        assert time.monotonic() < deadline
        other.rest(0.01)


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.mark.parametrize("messages", [1000, slow(3000)])
def test_signal_handlers_that_raise_tear_no_message_apart(two, messages):
    """Each message arrives, first in order, perhaps again later; only the interrupted one may be missing."""
    one, other = two
    sent, received, interrupts = [], [], []
    armed = False

    def interrupt(*_):
        nonlocal armed
        if armed:
            armed = False
            interrupts.append(len(sent))
            raise Interrupted

    def take(_, message):
        (number,) = set(array.array("q", bytes(message)))
        received.append(number)

    def exchange(number):
        sent.append(number)
        one.send(1, array.array("q", [number] * (1 + 7000 * (number % 2))).tobytes())
        while one.push(0.0):
            other.rest(0)
        other.rest(0)
        other.receive(take)

    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what is raised in a callback of the collector, as Hypothesis has one, goes nowhere
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 3.1e-4)
        for number in range(messages):
            with contextlib.suppress(Interrupted):
                armed = True
                exchange(number)
                armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    while one.push(0.0) or other.rest(0):
        other.rest(0)
        other.receive(take)
    assert len(interrupts) > 20
    first = list(dict.fromkeys(received))
    assert first == sorted(first)
    assert len(set(sent) - set(received)) <= len(interrupts)
    one.send(1, array.array("q", [-1]).tobytes())
    other.rest(1)
    other.receive(take)
    assert received[-1] == -1
