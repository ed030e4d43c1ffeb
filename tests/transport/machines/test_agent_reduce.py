"""Leaders of whom the first has an agent in the MPI job: the suite of all, in one job for all tests."""

import mmap

import numpy as np
import pytest

from support.communicators.suite import identical, reduced, values
from support.machines.mpi_group import MpiGroup, missing
from support.machines.suite import LARGE, LeadersSuite, reduce
from synk.transport.memory.shm import Segment

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def group():
    group = MpiGroup(3, with_agent=True)
    yield group
    group.close()


class TestAgent(LeadersSuite):
    @pytest.mark.parametrize("n_items", [70_001, LARGE])
    def test_arrays_in_shared_segments_are_combined_where_they_are(self, group, n_items, monkeypatch):
        segment = Segment.create(4 * n_items + 40)
        group.leaders.share(7, segment)
        segment.seal()
        array = segment.array("float32", (n_items,), offset=20)
        monkeypatch.setattr("support.machines.suite.values", lambda dtype, shape, seed: fill(array, seed))
        monkeypatch.setattr(group.reduction, "_space_for", None)  # no copy is made
        try:
            outcomes = self.results(group, reduce, "sum", "float32", [n_items])
        finally:
            group.leaders.unshare(7)
        expected = reduced([values("float32", (n_items,), machine) for machine in range(3)], "sum")
        for (result,) in outcomes:
            identical(result, expected)
        assert not segment.array("u1", (20,)).any(), "only the array is written"
        assert not segment.array("u1", (20,), offset=20 + array.nbytes).any()


def test_an_array_is_not_taken_for_one_in_memory_that_others_have_let_go_of(group):
    segment = Segment.create(1 << 24)
    group.leaders.share(8, segment)
    segment.close()
    try:  # memory where it was, if that is free
        arrays = [np.frombuffer(mmap.mmap(-1, 1 << 20), "u1") for _ in range(32)]
        assert all(group.reduction._place(array) is None for array in arrays)
    finally:
        group.leaders.unshare(8)


def fill(array, seed):
    """Put the values of a machine into an array."""
    array[...] = values(array.dtype, array.shape, seed)
    return array
