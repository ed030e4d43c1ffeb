"""All-reduces in parts, which go out while the gradient is computed."""

import mmap
import os
import signal

import numpy as np
import pytensor.tensor as pt
import pytest

import synk
from support.cases.small_training import network, shared, train
from synk import ops
from synk.extensions import updates
from synk.extensions.gradients import flat_gradient
from synk.extensions.train import make_train_function
from synk.gpu.speedups import overlapping
from synk.gpu.speedups.captured import WARM_UP
from synk.gpu.speedups.overlapping import PartedReduction
from synk.gpu.speedups.overlapping_rank import PartAnnouncer


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(overlapping, "PART_BYTES", 256)


@pytest.fixture
def log(monkeypatch):
    """Return a list of the parts that rank 0 launches, and of the ends of its all-reduces."""
    entries = []
    launch, finish = PartedReduction._launch, PartedReduction.finish

    def launched(self, start):
        entries.append(start)
        launch(self, start)

    def finished(self, array):
        entries.append("finish")
        result = finish(self, array)
        entries.append("end")
        return result

    monkeypatch.setattr(PartedReduction, "_launch", launched)
    monkeypatch.setattr(PartedReduction, "finish", finished)
    return entries


def early_and_late(log):
    """Return for each all-reduce what went out before its end, and what only then."""
    calls = []
    while log:
        finish, end = log.index("finish"), log.index("end")
        calls.append((log[:finish], log[finish + 1 : end]))
        log = log[end + 1 :]
    return calls


def test_training_gives_the_same_bits(gpus, log):
    gpus(3)
    expected_losses, expected, _ = train()
    assert log == []
    synk.close()
    gpus(3, overlap=True)
    losses, values, _ = train()
    assert losses == expected_losses
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, there)
    for early, late in early_and_late(log):
        assert len(early) >= 2  # the second layer's, before the first layer's are computed
        assert early == sorted(early, reverse=True)
        assert [*early, *late][-1] == 0


def test_parts_cover_the_vector_once(gpus, log):
    gpus(2, overlap=True)
    train(n_steps=1)
    starts = [entry for entry in log if isinstance(entry, int)]
    count = 6 * 40 + 40 + 40 * 3 + 3 + 1
    n_parts = -(-count * 8 // 256)
    assert starts == [count * part // n_parts for part in reversed(range(n_parts))]


def test_ranks_without_rows_and_slices(gpus):
    def run():
        rng = np.random.default_rng(5)
        loss, inputs, parameters = network(rng)
        step = make_train_function(loss, parameters, inputs, updates.sgd, learning_rate=0.1)
        rows, labels = rng.normal(size=(7, 6)), rng.integers(3, size=7)
        rows_and_slices = [(1, 1), (2, 1), (7, 2), (7, 3)] * 2
        losses = [float(step(rows, labels, batch=n, num_slices=slices)) for n, slices in rows_and_slices]
        return losses, [synk.gather(parameter) for parameter in parameters]

    gpus(3, overlap=True)
    losses, values = run()
    synk.close()
    gpus(3)
    expected_losses, expected = run()
    assert losses == expected_losses
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, there)


def make_step():
    rng = np.random.default_rng(5)
    loss, inputs, parameters = network(rng)
    step = make_train_function(loss, parameters, inputs, updates.sgd, learning_rate=0.0)
    rows, labels = rng.normal(size=(7, 6)), rng.integers(3, size=7)
    return lambda: float(step(rows, labels))


@pytest.fixture
def armed():
    """Return a byte, in an array, that all ranks see."""
    return mmap.mmap(-1, 1)


def test_a_rank_that_dies_before_its_parts_is_told(gpus, armed):
    def die(rank, name):
        if rank == 1 and armed[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    gpus(2, overlap=True, before=die)
    step = make_step()
    step()
    armed[0] = 1
    with pytest.raises(synk.WorkerDied, match="rank 1"):
        step()


def rank_of(announcer):
    return announcer._parted._link._barrier.rank


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_after_its_first_parts_leaves_the_run_usable(gpus, armed, monkeypatch, failing):
    finished = PartAnnouncer.finished

    def fail(self, variable, array, start):
        finished(self, variable, array, start)
        if armed[0] and rank_of(self) == failing and start < 200:
            raise ValueError("in the middle of the gradient")

    monkeypatch.setattr(PartAnnouncer, "finished", fail)
    gpus(2, overlap=True)
    step = make_step()
    first = step()
    armed[0] = 1
    with pytest.raises(ValueError, match="in the middle of the gradient"):
        step()
    armed[0] = 0
    assert step() == first


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_before_its_first_part_is_not_waited_for(gpus, monkeypatch, failing):
    """The first collective of a link does not wait for others within a call, as NCCL has it by default."""
    finished = PartAnnouncer.finished

    def fail(self, variable, array, start):
        if rank_of(self) == failing:
            raise ValueError("before the gradient")
        finished(self, variable, array, start)

    monkeypatch.setattr(PartAnnouncer, "finished", fail)
    monkeypatch.setattr(
        overlapping, "PART_BYTES", 1 << 20
    )  # one: the stand-in has room for no second in flight
    gpus(2, overlap=True)
    step = make_step()
    with pytest.raises(ValueError, match="before the gradient"):
        step()


def test_ranks_that_share_a_gpu_without_nccl_reduce_the_whole_gradient_at_once(gpus, log):
    gpus(2, version=None, overlap=True)
    step = make_step()
    assert step() == step()
    assert log == []


def test_recorded_programs_are_cut_where_parts_go_out(gpus, log):
    n_steps = 2 * WARM_UP + 2
    gpus(2)
    expected_losses, expected, _ = train(n_steps=n_steps)
    synk.close()
    gpus(2, overlap=True, cuda_graphs=True)
    losses, values, _ = train(n_steps=n_steps)
    assert losses == expected_losses
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, there)
    calls = early_and_late(log)
    assert len(calls) == n_steps
    assert calls[0][0]
    assert all(call == calls[0] for call in calls)  # a replay tells as early as the first call did


def train_with_statistics(all_ranks):
    """Train with running statistics, all-reduced beside the gradient; return what all ranks hold.

    With two rows the third rank has none.
    """
    rng = np.random.default_rng(5)
    x, labels = pt.matrix("x", dtype="float64"), pt.lvector("labels")
    w0, w1 = (shared(rng.normal(size=shape), f"w{k}") for k, shape in enumerate([(6, 30), (30, 3)]))
    gamma, beta = shared(np.ones(30), "gamma"), shared(np.zeros(30), "beta")
    mean, var = shared(np.zeros(30), "mean"), shared(np.ones(30), "var")
    hidden = (x @ w0).reshape((-1, 30, 1, 1))
    hidden, statistics = ops.batch_norm(hidden, gamma, beta, mean, var, train=True, all_ranks=all_ranks)
    loss = ops.softmax_cross_entropy(hidden.reshape((-1, 30)) @ w1, labels).mean()
    parameters = [w0, gamma, beta, w1]
    rule = updates.sgd
    step = make_train_function(loss, parameters, [x, labels], rule, updates=statistics, learning_rate=0.1)
    rows, targets = rng.normal(size=(7, 6)), rng.integers(3, size=7)
    losses = [float(step(rows, targets, batch=n_rows)) for n_rows in (7, 7, 2, 2, 7)]
    return losses, [synk.gather(variable) for variable in [*parameters, mean, var]]


@pytest.mark.parametrize("all_ranks", [False, True])
def test_other_collectives_keep_their_order(gpus, all_ranks):
    gpus(3, overlap=True)
    losses, values = train_with_statistics(all_ranks)
    synk.close()
    gpus(3)
    expected_losses, expected = train_with_statistics(all_ranks)
    assert losses == expected_losses
    for value, there in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, there)


# --- agreement ------------------------------------------------------------------------------------


def test_another_function_that_tells_of_the_variable_does_not_matter(gpus):
    gpus(2, overlap=True)
    loss, (x, labels), parameters = network(np.random.default_rng(5))
    flat, expression, _ = flat_gradient(loss, parameters)
    gradient = synk.function([x, labels], loss, updates=[(flat, expression, "sum")])
    total = synk.function([x], updates=[(flat, pt.alloc(x.sum(), flat.get_value().size), "sum")])
    rows = np.ones((2, 6))
    gradient(rows, np.zeros(2, "int64"), batch=1)  # rank 1 has no rows, so it does not compile what tells
    synk.sequence(total, (synk.all_reduce, flat, "sum"))(rows)
    np.testing.assert_array_equal(synk.gather(flat, nd_up=1), np.full((2, flat.get_value().size), 12.0))
