"""Collectives of ranks on several machines: the suite of all communicators, and what they send."""

import functools

import numpy as np
import pytest

from support.communicators.on_machines import MachinesGroup
from support.communicators.suite import CommunicatorSuite, DisagreementSuite, identical, reduced, values
from support.slow import slow
from synk.transport.comm import SharedArrays
from synk.transport.comm.machines_communicator import SMALL_BYTES, decoded, encoded
from synk.transport.commands.interfaces import Aborted

SIZES = [*map(slow, [(1,), (1, 1), (2, 1), (1, 3), (2, 2)]), (1, 2, 1)]
LARGE = 3 * SMALL_BYTES  # items of any dtype


@pytest.fixture(params=SIZES, ids=str)
def group(request):
    group = MachinesGroup(request.param)
    yield group
    group.close()


class TestMachines(CommunicatorSuite):
    def test_any_length_is_shared_among_any_ranks(self, group):
        """Large arrays are combined machine by machine: to rounding, and the same on all ranks."""
        for length in (1, 17, LARGE, LARGE + 5):
            results = group.run(
                lambda comm, n=length: comm.all_reduce(values("float32", (n,), comm.rank), "sum")
            )
            expected = reduced([values("float32", (length,), rank) for rank in range(group.n_ranks)], "sum")
            for result in results:
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6, strict=True)
                identical(result, results[0])

    def test_averages_do_not_overflow(self, group):
        for length in (5, LARGE):
            for result in group.run(
                lambda comm, n=length: comm.all_reduce(np.full(n, np.finfo("float64").max), "avg")
            ):
                np.testing.assert_allclose(result, np.finfo("float64").max, rtol=1e-12)

    @pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
    @pytest.mark.parametrize("dtype", ["int64", "uint8"])
    def test_large_arrays_of_whole_numbers_are_exact(self, group, op, dtype):
        expected = reduced([values(dtype, (LARGE,), rank) for rank in range(group.n_ranks)], op)
        for result in group.run(lambda comm: comm.all_reduce(values(dtype, (LARGE,), comm.rank), op)):
            identical(result, expected)


class TestDisagreement(DisagreementSuite):
    @pytest.fixture(params=[(1, 1), slow((2,))], ids=str)
    def group(self, request):
        group = MachinesGroup(request.param)
        yield group
        group.close()


def test_a_failure_on_one_machine_ends_the_wait_on_all(group):
    def work(comm):
        if comm.rank == group.n_ranks - 1:
            raise ZeroDivisionError
        return comm.all_reduce(np.ones(3), "sum")

    outcomes = group.outcomes(work)
    assert [type(one) for one in outcomes] == [Aborted] * (group.n_ranks - 1) + [ZeroDivisionError]
    for result in group.run(lambda comm: comm.all_reduce(np.ones(3), "sum")):
        assert result.tolist() == [group.n_ranks] * 3


@pytest.mark.parametrize("n_machines", [2, 4, 16, slow(64)])
def test_messages_grow_with_the_logarithm_and_bytes_not_at_all(n_machines):
    group = MachinesGroup((1,) * n_machines)
    nbytes = 8 * LARGE
    group.run(lambda comm: comm.all_reduce(np.ones(LARGE), "sum"))
    for leaders in group.leaders:
        assert leaders.messages <= 2 * (n_machines - 1) + n_machines.bit_length()
        assert leaders.nbytes <= 2 * nbytes + 200 * n_machines
    group.close()


@pytest.mark.parametrize("dtype", ["float32", ">f8", "bool", "complex128"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1, 1, 7)])
def test_parts_are_read_as_they_were_written(dtype, shape):
    array = values(dtype, shape, 1) if dtype in ("float32", "bool") else np.ones(shape, dtype)
    bring = functools.partial(encoded, "all_gather", "sum", array)
    one, other, empty = decoded(bring(True) + bring(True) + bring(False))
    identical(one.array, array)
    identical(other.array, array)
    assert empty.array is None
    assert {str(part.header) for part in (one, other, empty)} == {
        f"all_gather 'sum' of {array.dtype}{list(shape)}"
    }


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("length", [7, LARGE])
def test_arrays_in_shared_memory_are_reduced_where_they_are(group, length, op):
    """Every machine has the arrays of its own ranks, by place."""
    of_machines = [
        [values("float32", (length,), rank) for rank in machine.ranks] for machine in group.machines
    ]
    arrays = [array for of_machine in of_machines for array in of_machine]
    expected = reduced([array.copy() for array in arrays], op)

    def work(comm):
        machine = next(machine for machine in group.machines if comm.rank in machine.ranks)
        shared = SharedArrays(of_machines[machine.number], comm.rank - machine.first)
        return comm.all_reduce(shared.mine, op, shared)

    for result, array in zip(group.run(work), arrays, strict=True):
        assert result is array
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
        identical(array, arrays[0])
