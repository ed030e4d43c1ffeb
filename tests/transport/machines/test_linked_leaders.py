"""Leaders on links between threads: the suite of all, and messages and bytes as machines are added."""

import math
import time

import numpy as np
import pytest

from support.machines.leaders import ThreadGroup, Transfer, thread_leaders
from support.machines.suite import GaveUp, LeadersSuite, reduce
from support.slow import slow
from support.transport.parts import nothing, on_threads
from synk.transport.commands.interfaces import Aborted
from synk.transport.machines.all_reduce import RESULTS, TERMS
from synk.transport.machines.linked_leaders import HEAD, LENGTH, Place, pack
from synk.values.errors import LinkLost


@pytest.mark.slow
class TestThreads(LeadersSuite):
    @pytest.fixture(params=[slow(1), slow(2), 3, slow(5)], ids="{}-machines".format)
    def group(self, request):
        return ThreadGroup(request.param)


@pytest.mark.parametrize("n_machines", [2, 3, 8, slow(13), slow(64)])
def test_a_gather_takes_log_n_messages_and_no_more_bytes_than_it_brings(n_machines):
    group, rounds = ThreadGroup(n_machines), math.ceil(math.log2(n_machines))
    group.outcomes(lambda leaders, watch: leaders.all_gather(bytes(1000), watch))
    for leaders in group.leaders:
        assert leaders.messages == rounds
        assert leaders.nbytes == rounds * HEAD.size + (n_machines - 1) * (LENGTH.size + 1000)


@pytest.mark.parametrize("n_machines", [2, 3, 8, slow(64)])
def test_a_reduction_sends_as_much_as_a_ring(n_machines):
    group, n_items = ThreadGroup(n_machines), 1000 * n_machines
    group.outcomes(reduce, "sum", "float32", [])
    before = [(leaders.messages, leaders.nbytes) for leaders in group.leaders]
    group.outcomes(reduce, "sum", "float32", [n_items])
    for leaders, (messages, nbytes) in zip(group.leaders, before, strict=True):
        assert leaders.messages - 2 * messages == 2 * (n_machines - 1)
        assert leaders.nbytes - 2 * nbytes == 2 * (n_machines - 1) * n_items * 4 // n_machines


def test_results_that_come_after_a_reduction_was_given_up_are_not_written():
    """The array may be in use again by then."""
    one, other = thread_leaders(2)
    send, held = other.links.start_send, []

    def start_send(array, machine, tag):
        if tag % 2 != RESULTS:
            return send(array, machine, tag)
        held.append((array, machine, tag))
        return Transfer(array)

    def watch():
        if held:
            raise GaveUp

    other.links.start_send = start_send
    arrays = [np.ones(10), np.ones(10)]
    for leaders in (one, other):
        leaders.begin(1)
    outcomes = on_threads(2, lambda n: (one, other)[n].all_reduce(arrays[n], "sum", watch))
    assert [type(outcome) for outcome in outcomes] == [GaveUp, GaveUp]
    arrays[0][...] = 7
    ((array, machine, tag),) = held
    assert send(array, machine, tag).done, "machine 0 has waited for it"
    assert arrays[0].tolist() == [7] * 10


@pytest.mark.parametrize("meet", ["all_gather", "all_reduce"])
def test_two_machines_that_do_not_reach_each_other_end_the_wait_of_all(meet):
    leaders = thread_leaders(3)
    leaders[0].links.cut_off(1, 2)
    arguments = (b"",) if meet == "all_gather" else (np.ones(10), "sum")

    def work(machine):
        leaders[machine].begin(1)
        try:
            getattr(leaders[machine], meet)(*arguments, nothing)
        except Exception as error:
            leaders[machine].fail()
            return error

    zero, *others = on_threads(3, work)
    assert zero is None or isinstance(zero, Aborted)
    assert {LinkLost} <= set(map(type, others)) <= {LinkLost, Aborted}
    said = [str(error) for error in others if isinstance(error, LinkLost)]
    assert all(text.startswith(("no connection to 1 any", "no connection to 2 any")) for text in said)


def test_what_an_aborted_command_has_left_is_thrown_away():
    one, other = thread_leaders(2)
    for leaders in (one, other):
        leaders.begin(1)
    one.links.send(1, pack(Place(1, 1, 0), [memoryview(b"left")]))
    other.fail()
    with pytest.raises(Aborted):  # its terms have left
        one.all_reduce(np.ones(10), "sum", nothing)
    left = other.links._network.sent
    ((_, receiver, tag),) = (way for way, waiting in left.items() if waiting)
    one.links.start_send(np.ones(5), receiver, tag - TERMS + RESULTS)  # as if results had left, too
    assert sum(map(len, left.values())) == 2
    for leaders in (one, other):
        leaders.begin(2)
    gathered = on_threads(2, lambda machine: (one, other)[machine].all_gather(b"new%d" % machine, nothing))
    assert gathered == [[b"new0", b"new1"]] * 2
    assert not any(other.links._network.messages)
    arrays = [np.ones(10), np.ones(10)]
    on_threads(2, lambda machine: (one, other)[machine].all_reduce(arrays[machine], "sum", nothing))
    assert [set(array) for array in arrays] == [{2.0}, {2.0}]
    assert not any(left.values())


def test_a_failure_of_an_earlier_command_is_forgotten():
    one, other = thread_leaders(2)
    for leaders in (one, other):
        leaders.begin(1)
    one.fail()
    with pytest.raises(Aborted):
        other.all_gather(b"", nothing)
    one.begin(2)
    other.begin(2)

    def gather(machine):
        time.sleep(0 if machine else 0.05)  # the other has to wait
        return (one, other)[machine].all_gather(b"", nothing)

    assert on_threads(2, gather) == [[b"", b""]] * 2
