"""The run: forking and closing it, who may call when, threads, signals, and what is the same in every run."""

import errno
import gc
import os
import random
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import threadpoolctl

import synk
from support.processes.of_rank import OfRank, of_ranks
from support.slow import slow
from synk.run.device.cpu import count_cores


def summing():
    x = pt.vector("x")
    return synk.function([x], (x.sum(), "sum"))


def test_fork_makes_that_many_ranks(ranks):
    assert ranks(3) == 3
    assert len(set(synk.pids())) == 3
    assert synk.pids()[0] == os.getpid()
    np.testing.assert_array_equal(of_ranks(os.getpid), synk.pids())


def test_a_run_is_open_from_fork_to_close(ranks):
    assert not synk.is_open()
    with pytest.raises(synk.SynkStateError, match=r"n_ranks: no run is open; call synk\.fork"):
        synk.n_ranks()
    ranks(2)
    assert synk.is_open()
    assert synk.n_ranks() == 2
    child = os.fork()
    if child == 0:  # the run is not that of a copy of its master
        os._exit(synk.is_open())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    synk.close()
    assert not synk.is_open()


def test_without_a_number_there_is_a_rank_per_core(ranks):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(cores)[:2]))
    try:
        assert ranks() == min(len(cores), 2)
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.slow
def test_more_ranks_than_cores_are_legal(ranks):
    n_ranks = count_cores() + 3
    assert ranks(n_ranks) == n_ranks
    v = pytensor.shared(np.ones(3), name="v")
    synk.all_reduce(v, "sum")
    assert summing()(np.ones(50)) == 50
    np.testing.assert_array_equal(synk.gather(v), np.full((n_ranks, 3), n_ranks))


def test_fork_works_again_after_close(ranks):
    seen = set()
    for n_ranks in (2, 1, 3):
        assert ranks(n_ranks) == n_ranks
        assert summing()(np.arange(5.0)) == 10
        seen.update(synk.pids()[1:])
        synk.close()
    assert len(seen) == 3


def test_fork_works_after_a_failed_fork(ranks, monkeypatch):
    fork, calls = os.fork, []

    def failing():
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", failing)
    with pytest.raises(BlockingIOError):
        synk.fork(3)
    assert len(calls) == 2
    with pytest.raises(synk.SynkStateError, match="no run is open"):
        synk.pids()
    assert ranks(3) == 3
    assert summing()(np.ones(4)) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"n_parallel": 0}, ValueError, "n_parallel=0"),
        ({"n_parallel": -2}, ValueError, "n_parallel=-2"),
        ({"n_parallel": 2.0}, TypeError, r"n_parallel=2\.0"),
        ({"n_parallel": True}, TypeError, "n_parallel=True"),
        ({"threads": 0}, ValueError, "threads=0"),
        ({"threads": "2"}, TypeError, "threads='2'"),
        ({"device": "abacus"}, ValueError, "device='abacus'"),
    ],
)
def test_wrong_arguments_start_nothing(arguments, error, match):
    with pytest.raises(error, match=match):
        synk.fork(**arguments)
    with pytest.raises(synk.SynkStateError):
        synk.pids()


def test_fork_warns_of_threads(ranks, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # a notebook's, which is not warned
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="busy-thread")
    thread.start()
    try:
        with pytest.warns(synk.SynkWarning, match="busy-thread") as caught:
            ranks(2)
    finally:
        stop.set()
        thread.join()
    assert summing()(np.ones(4)) == 4
    assert caught[0].filename == __file__


def interrupted_call(handler, call):
    """Run ``call`` with ``handler()`` called by a signal in the middle of it."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0.15)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def slow_sum(on_master):
    """Return a function that reads its rows after a pause, on the master or on a worker."""
    x, w = pt.vector("x"), pt.scalar("w")
    # The pause comes before the rows are read: they depend on it.
    pause = OfRank(sleep_on_master if on_master else sleep_on_workers)(w)
    return synk.function([x], ((x * pause[0]).sum(), "sum"), [w])


def sleep_on_master():
    return sleep_a_while(os.getpid() == MASTER)


def sleep_on_workers():
    return sleep_a_while(os.getpid() != MASTER)


def sleep_a_while(really):
    wake = time.monotonic() + 0.4 * really
    while time.monotonic() < wake:
        time.sleep(0.01)
    return 1


MASTER = os.getpid()


@pytest.mark.parametrize(
    ("error", "on_master"),
    [
        slow(TimeoutError, True, id="TimeoutError-master computes"),
        pytest.param(LookupError, False, id="LookupError-master waits"),
        slow(LookupError, True, id="LookupError-master computes"),
        slow(TimeoutError, False, id="TimeoutError-master waits"),
    ],
)
def test_an_exception_of_a_signal_handler_is_kept_and_no_reply_mistaken(ranks, on_master, error):
    ranks(2)
    f, v = slow_sum(on_master), pytensor.shared(np.zeros(2), name="v")
    f(np.ones(4), 0.0)

    def give_up():
        raise error("the script gave up")

    try:
        raised = interrupted_call(give_up, lambda: f(np.ones(4), 0.0))
    except Exception as caught:
        raised = caught.with_traceback(None)
    second = f(np.arange(4.0), 0.0), synk.get_shapes(v)
    synk.close()
    assert isinstance(raised, error)
    assert "gave up" in str(raised)
    assert second == (6, [(2,), (2,)])


@pytest.mark.slow
def test_what_is_dropped_in_the_middle_of_a_command_waits_for_its_end(ranks):
    ranks(2)
    x, trigger = pt.vector("x"), pt.scalar("trigger")
    doomed = synk.function([x], (x.sum(), "sum"))
    doomed(np.ones(4))  # has buffers now
    KEPT.extend([doomed, synk.data(np.ones(100))])
    function = weakref.ref(doomed)
    del doomed
    v = pytensor.shared(np.ones(100_000), name="v")
    drop = synk.function([], (OfRank(drop_kept)(trigger), None), [trigger])
    # The collective needs memory that the ranks attach in the middle of the command.
    both = synk.sequence(drop, (synk.all_reduce, v, "sum"))
    both(0.0)
    assert function() is None
    assert KEPT == []
    np.testing.assert_array_equal(synk.gather(v), np.full((2, 100_000), 2))
    assert summing()(np.ones(4)) == 4


KEPT = []


def drop_kept():
    KEPT.clear()
    gc.collect()
    return 0


def blas_threads():
    """Return the most threads that a BLAS library of this process uses."""
    return max(entry["num_threads"] for entry in threadpoolctl.threadpool_info())


@pytest.mark.filterwarnings("ignore:fork. threads=")  # this machine may have fewer cores
@pytest.mark.parametrize("threads", [1, slow(2), 3])
def test_threads_limits_every_rank_and_close_lifts_the_limit(ranks, threads):
    before, variable = blas_threads(), os.environ.get("OMP_NUM_THREADS")
    ranks(2, threads=threads)
    assert of_ranks(blas_threads).tolist() == [threads, threads]
    assert os.environ["OMP_NUM_THREADS"] == str(threads)
    synk.close()
    assert blas_threads() == before
    assert os.environ.get("OMP_NUM_THREADS") == variable


def test_ranks_share_the_cores(ranks):
    for n_ranks in (1, 2, count_cores() + 1):
        ranks(n_ranks)
        assert of_ranks(blas_threads).tolist() == [max(1, count_cores() // n_ranks)] * n_ranks
        synk.close()


def training_bits(n_ranks):
    """Train a little, with noise, and return the bits of what came out."""
    synk.fork(n_ranks)
    generator = np.random.default_rng(8)
    x, y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="float32")
    w = pytensor.shared(generator.normal(size=5).astype("float32"), name="w")
    state = pytensor.shared(np.random.default_rng(9), name="state")
    following, noise = pt.random.normal(size=(5,), rng=state, return_next_rng=True)
    g = pytensor.shared(np.zeros(5, "float32"), name="g")
    loss = ((pt.tanh(x @ w) - y) ** 2).mean()
    noisy = pt.grad(loss, w) + noise.astype("float32")
    gradient = synk.function([x, y], loss, updates=[(g, noisy, "avg"), (state, following)])
    update = synk.function([], updates=[(w, w - np.float32(0.1) * g)])
    train = synk.sequence(gradient, (synk.all_reduce, g), update)
    xs, ys = generator.normal(size=(101, 5)).astype("float32"), generator.normal(size=101).astype("float32")
    losses = [train(xs, ys, num_slices=num_slices).tobytes() for num_slices in (1, 3)]
    bits = losses, synk.gather(w).tobytes()
    synk.close()
    return bits


def test_the_same_run_twice_gives_the_same_bits(ranks):
    first, second = training_bits(2), training_bits(2)
    assert first == second
    assert len(set(first[0])) == 2


def python_random():
    return random.random()


def numpy_random():
    return np.random.random()


def test_ranks_have_random_numbers_of_their_own(ranks):
    ranks(3)
    for source in (python_random, numpy_random):
        assert len(set(of_ranks(source))) == 3
