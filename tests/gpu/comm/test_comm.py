"""Whole runs on GPUs that are not there, connected by an NCCL that is not there either, or staged."""

import os
import signal
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.communicators import fake_nccl_runs
from support.cupy import stand_in
from support.cupy.crossings import Crossings
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.run_values import ranks
from synk.gpu.comm.nccl import NcclCommunicator
from synk.gpu.comm.staged import StagedCommunicator
from synk.gpu.device.probe import Gpu, Survey
from synk.ops import all_gather, all_reduce, all_sum, broadcast, reduce_scatter

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"


def shared(value, name, dtype="float64"):
    return pytensor.shared(np.asarray(value, dtype=dtype), name=name)


def rank_0():
    return synk.run.session.current.session("a test")._rank


def lies_on_device(variable):
    return isinstance(variable.container.storage[0], stand_in.ndarray)


# --- which connection -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*share GPU:synk.SynkWarning")
@pytest.mark.parametrize(
    ("n_ranks", "n_gpus", "version", "expected"),
    [
        (2, 2, 22907, NcclCommunicator),
        (2, 1, 22907, StagedCommunicator),
        (2, 1, 23004, NcclCommunicator),
        (3, 2, 23004, NcclCommunicator),
        (2, 2, None, StagedCommunicator),
    ],
)
def test_ranks_are_connected_by_nccl_where_it_lets_them(gpus, n_ranks, n_gpus, version, expected):
    gpus(n_ranks, n_gpus, version)
    assert type(rank_0().communicator) is expected
    v = shared([1.0, 2.0], "v")
    synk.all_reduce(v, "sum")
    assert lies_on_device(v)
    for rank in range(n_ranks):
        np.testing.assert_array_equal(synk.get_value(rank, v), np.array([1, 2]) * n_ranks)
    assert os.environ.get(SHARING) == ("1" if n_gpus < n_ranks else None)
    synk.close()
    assert SHARING not in os.environ
    assert "NCCL_MAX_CTAS" not in os.environ


@pytest.mark.filterwarnings("ignore:.*share GPU:synk.SynkWarning")
def test_sharing_a_gpu_can_be_forbidden(gpus, monkeypatch):
    monkeypatch.setenv(SHARING, "0")
    gpus(2, n_gpus=1)
    assert type(rank_0().communicator) is StagedCommunicator
    synk.close()
    assert os.environ[SHARING] == "0"


@pytest.mark.filterwarnings("ignore:.*share GPU:synk.SynkWarning")
def test_a_fork_that_fails_takes_back_what_it_has_set(cupy, monkeypatch):
    found = Survey((Gpu(7, "NVIDIA H200"),))
    monkeypatch.setattr("synk.gpu.setup.choose_gpus.survey", lambda: found)
    fake_nccl_runs.install(cupy, 2)
    with pytest.raises(synk.CudaUnavailable, match="GPU 7"):
        synk.fork(2, device="cuda")
    assert SHARING not in os.environ


def test_the_link_is_made_at_the_first_collective_and_given_up_at_the_end(gpus):
    nccl = gpus(2)
    v = shared([1.0], "v")
    synk.function([], updates=[(v, v + 1)])()
    assert nccl.live == 0
    synk.all_reduce(v)
    synk.all_reduce(v)
    assert nccl.live == 1
    synk.close()
    assert nccl.live == 0


# --- collectives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [23004, None], ids=["nccl", "staged"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_collectives_of_values_on_the_device(gpus, n_ranks, version):
    gpus(n_ranks, version=version)
    v = shared([1.0, 2.0], "v")
    double = synk.function([], (v.sum(), None), updates=[(v, 2 * v)])
    assert double() == 3
    np.testing.assert_array_equal(synk.gather(v), [[2, 4]] * n_ranks)
    double()
    synk.all_reduce(v, "sum")
    np.testing.assert_array_equal(synk.get_value(n_ranks - 1, v), np.array([4, 8]) * n_ranks)
    assert not synk.run.session.current.session("a test").memory.shared_storage.as_messages()
    double()
    np.testing.assert_array_equal(synk.reduce(v, "max", in_place=False), np.array([8, 16]) * n_ranks)
    synk.reduce(v, "sum")
    np.testing.assert_array_equal(synk.get_value(0, v), np.array([8, 16]) * n_ranks**2)
    synk.set_value(n_ranks - 1, v, np.array([1.0, 1.0]))  # on the host there, on the device elsewhere
    synk.all_reduce(v, "min")
    np.testing.assert_array_equal(synk.get_value(0, v), [1, 1])
    double()
    synk.broadcast(v)
    double()
    synk.check_finite(v)
    assert synk.get_shapes(v) == [(2,)] * n_ranks
    synk.scatter(v, np.arange(5.0))
    double()
    np.testing.assert_array_equal(synk.gather(v, nd_up=0), 2 * np.arange(5.0))
    double()
    synk.all_gather(v)
    np.testing.assert_array_equal(synk.get_value(0, v), 4 * np.arange(5.0))
    double()
    np.testing.assert_array_equal(synk.get_value(n_ranks - 1, v), 8 * np.arange(5.0))
    synk.set_value(0, v, np.arange(2.0))
    synk.broadcast(v)  # another shape than the others have
    np.testing.assert_array_equal(synk.gather(v), [[0, 1]] * n_ranks)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float16", "complex128"])
def test_dtypes_and_values_without_axes(gpus, dtype):
    gpus(2)
    v, number = shared([[1, 0], [1, 1]], "v", dtype), shared(3, "number", "int64")
    synk.all_reduce(v, "prod")
    synk.all_reduce(number, "sum")
    np.testing.assert_array_equal(synk.get_value(1, v), np.asarray([[1, 0], [1, 1]], dtype))
    assert synk.get_value(1, v).dtype == dtype
    assert synk.get_value(1, number) == 6
    grow = synk.function([], pt.ones(number).sum(), updates=[(number, number + 1)])  # a length: on the host
    assert [grow(), grow()] == [6, 7]
    synk.all_reduce(number, "max")
    assert [synk.get_value(rank, number) for rank in range(2)] == [8, 8]


def test_what_is_not_finite_is_counted_on_the_device(gpus, monkeypatch):
    crossings = Crossings(monkeypatch)
    gpus(2)
    v, n = shared(np.zeros(100), "v"), shared([1, 2], "n", "int64")
    synk.function([], updates=[(v, v + np.nan), (n, n + 1)])()
    crossings.take()
    with pytest.raises(synk.NonFinite, match=r"100 of 100 values \(100 NaN\) of 'v'"):
        synk.check_finite([v, n])
    assert np.max(crossings.take()) <= 8  # a number


@pytest.mark.filterwarnings("ignore:no array entry for uniform")
def test_random_states_travel_as_on_cores(gpus):
    gpus(2)
    state = pytensor.shared(np.random.default_rng(3), name="state")
    next_state, draws = pt.random.uniform(rng=state, size=(2,), return_next_rng=True)
    f = synk.function([], (draws, "gather"), updates=[(state, next_state)])
    first = f()
    synk.broadcast(state, None)
    assert len(set(first.tolist())) == 4
    assert isinstance(synk.get_value(1, state), np.random.Generator)


def test_ranks_that_disagree_are_told_and_go_on(gpus):
    gpus(2)
    v = shared([1.0, 2.0], "v")
    synk.scatter(v, np.arange(3.0))
    with pytest.raises(synk.CollectiveMismatch):
        synk.all_reduce(v)
    synk.broadcast(v)
    synk.all_reduce(v, "sum")
    np.testing.assert_array_equal(synk.get_value(1, v), [0, 2])


@pytest.mark.parametrize("n_rows", [1, 5])
@pytest.mark.parametrize("mode", [None, "debug", "FAST_COMPILE"])
def test_sums_in_the_middle_of_a_graph(gpus, mode, n_rows):
    gpus(2)
    x = pt.matrix("x", dtype="float64")
    total = synk.function([x], (x.sum(0) / all_sum(x.sum(0)), "sum"), mode=mode)
    np.testing.assert_allclose(total(np.arange(1.0, 2 * n_rows + 1).reshape(n_rows, 2)), [1, 1])


@pytest.mark.parametrize(("mode", "version"), [(None, 23004), (None, None), ("debug", 23004)])
def test_collectives_and_their_gradients_in_the_middle_of_a_graph(gpus, mode, version):
    gpus(2, version=version)
    x, w = pt.matrix("x", dtype="float64"), shared([1.0, 2.0], "w")
    z = pt.tanh(x) * w
    results = [
        *(all_reduce(z.sum(0), op).sum() for op in ("prod", "avg")),
        all_gather(z.T, 1).sum(),
        *(reduce_scatter(z.sum(0), op).sum() for op in ("sum", "avg")),
        broadcast(z.sum(0), 1).sum(),
        sum(part.sum() for part in AllReduceOp("max")(z.sum(0), z.sum(), ranks)),
    ]
    outputs = [(output, "sum") for one in results for output in (one, pt.grad(pt.sqr(one), w))]
    function = synk.function([x], outputs, mode=mode)
    values = [np.linspace(-1, 2, 2 * n).reshape(n, 2) for n in (1, 5)]
    on_gpus = [function(rows) for rows in values]
    synk.close()
    synk.fork(2)
    on_cores = synk.function([x], outputs)
    for rows, got in zip(values, on_gpus, strict=True):
        for value, expected in zip(got, on_cores(rows), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-12)


# --- faults -----------------------------------------------------------------------------------------------


class Dying:
    """Kill a rank before it launches an all-reduce, once there have been so many."""

    def __init__(self, rank, after=1):
        self.rank, self.left = rank, after

    def __call__(self, rank, name):
        if name == "allReduce" and rank == self.rank:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("n_ranks", "victim"), [(2, 1), (3, 1), (3, 2)])
def test_a_rank_that_dies_in_an_all_reduce_is_told_within_a_second(gpus, n_ranks, victim):
    nccl = gpus(n_ranks, before=Dying(victim))
    v = shared(np.ones(1000), "v")
    synk.all_reduce(v, "sum")
    start = time.monotonic()
    with pytest.raises(synk.WorkerDied, match=f"rank {victim} .*SIGKILL"):
        synk.all_reduce(v, "sum")
    assert time.monotonic() - start < 1
    assert nccl.live == 0
    with pytest.raises(synk.WorkerDied):
        synk.all_reduce(v)
    synk.close()
    assert type(v.get_value()) is np.ndarray


def test_a_rank_that_fails_in_a_collective_leaves_the_run_usable(gpus):
    failed = []

    def fail(rank, name):
        if rank == 1 and name == "allReduce" and not failed:
            failed.append(True)
            raise ValueError("of this rank alone")

    nccl = gpus(2, before=fail)
    v = shared(np.ones(3), "v")
    with pytest.raises(ValueError, match="of this rank alone"):
        synk.all_reduce(v, "sum")
    assert nccl.live == 0
    synk.broadcast(v, np.ones(3))
    synk.all_reduce(v, "sum")  # by a new link
    assert nccl.live == 1
    np.testing.assert_array_equal(synk.get_value(1, v), [2, 2, 2])


@pytest.mark.parametrize("victim", [0, 1])
def test_an_error_of_nccl_names_it(gpus, victim):
    def fail(rank, name):
        # Only one: of two that fail, the one that tells of it first is named.
        if rank == victim:
            raise fake_nccl_runs.NcclError("unhandled system error")

    gpus(2, before=fail)
    v = shared(np.ones(3), "v")
    named = f"NCCL failed in all_reduce on rank {victim}: unhandled system error"
    with pytest.raises(synk.RemoteError, match=named):
        synk.all_reduce(v, "sum")
