"""The communicator of devices by way of the host: the suite of all, on strict stand-ins for device arrays."""

import numpy as np
import pytest

from support.communicators.on_device import OnDevice
from support.communicators.suite import CommunicatorSuite, DisagreementSuite, HostGroup, identical
from support.cupy import stand_in
from synk.gpu.comm.staged import StagedCommunicator
from synk.transport.comm import SharedArrays
from synk.values.errors import CollectiveMismatch


class StagedGroup(HostGroup):
    """Ranks whose arrays are device arrays of the stand-in."""

    def __init__(self, n_ranks):
        super().__init__(n_ranks)
        self.staged = [
            StagedCommunicator(comm, stand_in.asnumpy, stand_in.asarray) for comm in self.communicators
        ]
        self.communicators = [OnDevice(comm) for comm in self.staged]


class NumPyGroup(HostGroup):
    """Ranks whose device is the host."""

    def __init__(self, n_ranks):
        super().__init__(n_ranks)
        self.communicators = [StagedCommunicator(comm, np.asarray, np.asarray) for comm in self.communicators]


@pytest.fixture(params=[1, 3], ids="{}-ranks".format)
def group(request):
    group = StagedGroup(request.param)
    yield group
    group.close()


class TestStaged(CommunicatorSuite):
    """The suite of all communicators."""


class TestStagedOnTheHost(CommunicatorSuite):
    @pytest.fixture
    def group(self):
        group = NumPyGroup(2)
        yield group
        group.close()


class TestStagedDisagreement(DisagreementSuite):
    @pytest.fixture
    def group(self):
        group = StagedGroup(2)
        yield group
        group.close()


def device(values, dtype="float32"):
    return stand_in.ndarray(np.array(values, dtype))


def host(array):
    return array._value.tolist()


def test_results_stay_where_the_array_is(group):
    n_ranks = group.n_ranks
    arrays = [[device([1.0, rank]) for _ in range(3)] for rank in range(n_ranks)]
    turned = [stand_in.ndarray(np.full((2, 3), 1.0).T) for _ in range(n_ranks)]
    apart = [stand_in.ndarray(np.ones(6)[::2]) for _ in range(n_ranks)]

    def work(comm):
        inner, (one, two, three) = group.staged[comm.rank], arrays[comm.rank]
        return (
            inner.all_reduce(one, "sum"),
            inner.reduce(two, "sum", in_place=True),
            inner.broadcast(three, n_ranks - 1, SharedArrays([three], 0)),
            inner.all_reduce(turned[comm.rank], "sum"),
            inner.all_reduce(apart[comm.rank], "sum"),
        )

    for rank, (one, two, three, four, five) in enumerate(group.run(work)):
        assert one is arrays[rank][0]
        assert two is (None if rank else arrays[0][1])
        assert three is arrays[rank][2]
        assert four is turned[rank]
        assert host(one) == [n_ranks, sum(range(n_ranks))]
        assert host(three) == [1.0, n_ranks - 1]
        assert set(four._value.flat) == set(five._value.flat) == {n_ranks}
    assert host(arrays[0][1]) == [n_ranks, sum(range(n_ranks))]


def test_each_array_goes_down_and_up_once(group):
    arrays = [device([1.0, rank]) for rank in range(group.n_ranks)]
    stand_in.counts.reset()
    group.run(lambda comm: group.staged[comm.rank].all_reduce(arrays[comm.rank], "sum"))
    assert (stand_in.counts.uploads, stand_in.counts.downloads) == (group.n_ranks, group.n_ranks)


class TestBfloat16:
    """NumPy has this dtype by an extension, and no reductions of it."""

    @pytest.fixture
    def bfloat16(self):
        return pytest.importorskip("ml_dtypes").bfloat16

    @pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
    def test_reductions_are_rounded_once(self, group, bfloat16, op):
        def bring(rank):
            return np.random.default_rng(rank).normal(size=(3, 5)).astype(bfloat16)

        ufunc = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op, np.add)
        total = bring(0).astype("float32")
        for rank in range(1, group.n_ranks):
            total = ufunc(total, bring(rank).astype("float32"))
        expected = (total / np.float32(group.n_ranks) if op == "avg" else total).astype(bfloat16)

        def work(comm):
            return comm.all_reduce(bring(comm.rank), op), comm.reduce(bring(comm.rank), op)

        for rank, (everywhere, at_root) in enumerate(group.run(work)):
            identical(everywhere, expected)
            if rank == 0:
                identical(at_root, expected)
            else:
                assert at_root is None

    def test_averages_do_not_overflow(self, group, bfloat16):
        largest = np.array([3.3895e38, -3.3895e38], bfloat16)
        for result in group.run(lambda comm: comm.all_reduce(largest.copy(), "avg")):
            identical(result, largest)

    def test_arrays_move_as_they_are(self, group, bfloat16):
        def bring(rank):
            return np.full((rank, 2), rank + 0.5, bfloat16)

        def work(comm):
            mine = bring(comm.rank)
            return comm.broadcast(mine, comm.n_ranks - 1), comm.all_gather(mine), comm.gather(mine)

        for rank, (last, all_, gathered) in enumerate(group.run(work)):
            identical(last, bring(group.n_ranks - 1))
            for other in range(group.n_ranks):
                identical(all_[other], bring(other))
            assert (gathered is None) == (rank > 0)

    def test_shapes_that_differ_are_told(self, bfloat16):
        group = StagedGroup(2)
        outcomes = group.outcomes(lambda comm: comm.all_reduce(np.ones(comm.rank + 1, bfloat16), "sum"))
        outcomes += group.outcomes(
            lambda comm: comm.all_reduce(np.ones(1, bfloat16 if comm.rank else "float32"), "sum")
        )
        group.close()
        assert [type(outcome) for outcome in outcomes] == [CollectiveMismatch] * 4
        assert "'sum' of bfloat16, rank 0: [1]; rank 1: [2]" in str(outcomes[0])
