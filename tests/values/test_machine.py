import pickle

import pytest

from synk.values.machine import machines


@pytest.mark.parametrize("sizes", [[3], [1, 1], [2, 3, 1], [4, 1, 2, 5]], ids=str)
def test_the_ranks_of_all_machines_are_those_of_the_run_once_and_in_order(sizes):
    of_run = machines([f"h{number}" for number in range(len(sizes))], sizes)
    assert [rank for machine in of_run for rank in machine.ranks] == list(range(sum(sizes)))
    for machine, size in zip(of_run, sizes, strict=True):
        assert (machine.n_places, machine.n_ranks) == (size, sum(sizes))
        assert [machine.first + place for place in range(size)] == list(machine.ranks)


def test_machines_keep_the_order_of_hosts():
    of_run = machines(["b", "a", "c"], [1, 2, 1])
    assert [(machine.number, machine.host) for machine in of_run] == [(0, "b"), (1, "a"), (2, "c")]


def test_a_machine_travels():
    machine = machines(["a", "b"], [2, 3])[1]
    arrived = pickle.loads(pickle.dumps(machine))
    assert arrived == machine
    assert arrived.ranks == range(2, 5)
