"""Training in CUDA graphs on GPUs that are not there: recorded once, whatever is set, to the same bits."""

import mmap
import os
import threading
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cuda import emulator
from synk.extensions import train, updates
from synk.gpu.device.uploads import Request, Uploader
from synk.gpu.speedups.captured import MOST
from synk.gpu.speedups.graphs import Graphs
from synk.ops import dropout
from synk.values.rows import SelectedRows

N_ROWS, N_COLUMNS = 12, 5


class Recorded:
    """How many recordings were made: rank 0's, and those of a worker."""

    def __init__(self):
        self._counts = np.frombuffer(mmap.mmap(-1, 2 * 8), np.int64)
        self._master = os.getpid()

    def note(self):
        self._counts[int(os.getpid() != self._master)] += 1

    def __call__(self):
        return self._counts.tolist()


@pytest.fixture
def recorded(monkeypatch):
    """Return the recordings so far, counted."""
    counts, record = Recorded(), Graphs.record

    def noted(graphs, run):
        counts.note()
        return record(graphs, run)

    monkeypatch.setattr(Graphs, "record", noted)
    return counts


def sample(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def model():
    """Return a step, its rate and its weights."""
    x, y = pt.fmatrix("x"), pt.fvector("y")
    rate = pytensor.shared(np.float32(0), name="rate")
    weights = pytensor.shared(sample(N_COLUMNS), name="weights")
    loss = pt.sqr(pt.tanh(x @ weights) - y).mean()
    trained = weights - rate * pt.grad(loss, weights)
    step = synk.function([x, y], (loss, "avg"), updates=[(weights, trained, "avg")])  # each rank for itself
    return step, rate, weights


def trained(set_rate, n_steps, **options):
    step, rate, weights = model()
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    losses = []
    for k in range(n_steps):
        set_rate(rate, np.float32(0.5 / (k + 1)))
        losses.append(float(step(*data, **options)))
    return losses, weights.get_value().tobytes()


@pytest.mark.parametrize("num_slices", [1, 3])
def test_a_rate_that_is_set_each_step_is_recorded_once(gpus, recorded, num_slices):
    gpus(1)
    set_rate = pytensor.compile.sharedvalue.SharedVariable.set_value
    expected = trained(set_rate, 100, num_slices=num_slices)
    synk.close()
    gpus(1, cuda_graphs=True)
    assert trained(set_rate, 100, num_slices=num_slices) == expected
    assert recorded() == [1, 0]
    assert len(set(expected[0])) == 100


def test_a_rate_that_all_ranks_are_handed_is_recorded_once(gpus, recorded):
    def handed(rate, value):
        synk.broadcast(rate, value)
        assert synk.get_value(1, rate) == value

    gpus(2)
    expected = trained(handed, 3 * MOST)
    synk.close()
    gpus(2, cuda_graphs=True)
    assert trained(handed, 3 * MOST) == expected
    assert recorded() == [1, 1]


def test_a_rank_alone_meets_nobody_and_so_its_step_is_recorded(gpus, recorded):
    gpus(1, cuda_graphs=True)
    x, weights = pt.fmatrix("x"), pytensor.shared(sample(N_COLUMNS), name="weights")
    loss = pt.sqr(x @ weights).mean()
    step = synk.function([x], loss, updates=[(weights, weights - pt.grad(loss, weights))])
    for _ in range(5):
        step(sample(N_ROWS, N_COLUMNS))
    assert recorded() == [1, 0]


def test_calls_that_fail_do_not_count(gpus, recorded):
    gpus(1, cuda_graphs=True)
    x, v = pt.fvector("x"), pytensor.shared(np.zeros(3, "float32"), name="v")
    f = synk.function([], (v, None), bcast_inputs=[x], updates=[(v, v + x)])
    for number in range(5):
        with pytest.raises(ValueError, match="^lengths 3 and 2 differ"):
            f(np.ones(2, "float32"))
        assert f(np.ones(3, "float32")).tolist() == [number] * 3
    assert recorded() == [1, 0]


def test_plain_functions_read_what_was_set(gpus, recorded):
    gpus(1, cuda_graphs=True)
    v = pytensor.shared(np.arange(3, dtype="float32"), name="v")
    double = synk.function([], updates=[(v, 2 * v)])
    add = pytensor.function([], v.sum(), updates=[(v, v + 1)], mode="FAST_COMPILE")
    for _ in range(5):
        double()
        expected = v.get_value()
        v.set_value(expected)
        assert add() == expected.sum()
        np.testing.assert_array_equal(v.get_value(), expected + 1)
    assert recorded() == [1, 0]


def test_a_rate_that_is_set_and_then_broadcast_is_recorded_once(gpus, recorded):
    def set_and_sent(rate, value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", synk.SynkWarning)  # of a value that rank 0 alone has
            rate.set_value(value)
        synk.broadcast(rate)
        assert synk.get_value(1, rate) == value

    gpus(2, cuda_graphs=True)
    trained(set_and_sent, 3 * MOST)
    assert recorded() == [1, 1]


def test_a_function_that_is_new_takes_a_value_elsewhere_and_the_others_follow(gpus, recorded):
    gpus(1, cuda_graphs=True)
    v = pytensor.shared(np.zeros(3, "float32"), name="v")
    functions = [synk.function([], (v * k, "gather")) for k in (1, 2, 3)]
    for k in range(2 * MOST):
        v.set_value(np.full(3, k, "float32"))
        for number, f in enumerate(functions[: 1 + k // 5], 1):
            assert f().tolist() == [number * k] * 3
    assert recorded()[0] <= 6  # three functions, and a place that two share with the third


@pytest.mark.parametrize("num_slices", [1, 3])
def test_gradients_of_slices_are_summed_and_applied_by_two_recordings(gpus, recorded, num_slices):
    def run():
        x, y = pt.fmatrix("x"), pt.fvector("y")
        weights = pytensor.shared(sample(N_COLUMNS), name="weights", shape=(N_COLUMNS,))
        loss = pt.sqr(pt.tanh(x @ weights) - y).mean()
        step = train.make_train_function(loss, [weights], [x, y], updates.momentum, learning_rate=0.1)
        data = step.build_inputs(sample(N_ROWS, N_COLUMNS), sample(N_ROWS))
        losses = [float(step(*data, num_slices=num_slices)) for _ in range(8)]
        return losses, [synk.get_value(rank, weights).tobytes() for rank in range(2)]

    gpus(2)
    expected = run()
    synk.close()
    gpus(2, cuda_graphs=True)
    assert run() == expected
    assert recorded() == [2, 2]  # of the gradient, of the update
    assert expected[0][0] > expected[0][-1]


# --- random numbers --------------------------------------------------------------------------------------


def dropped_out(n_ranks, num_slices):
    """Return losses and weights of training with dropout, and the states that it leaves."""
    x, y = pt.fmatrix("x"), pt.fvector("y")
    weights = pytensor.shared(sample(N_COLUMNS), name="weights")
    state = pytensor.shared(np.random.default_rng(3), name="state")
    kept, update = dropout(x, 0.5, state)
    loss = pt.sqr(pt.tanh(kept @ weights) - y).mean()
    step = synk.function(
        [x, y],
        (loss, "avg"),
        updates=[(weights, weights - np.float32(0.1) * pt.grad(loss, weights), "avg"), (*update, None)],
    )
    data = synk.data(sample(N_ROWS, N_COLUMNS)), synk.data(sample(N_ROWS))
    losses = [float(step(*data, num_slices=num_slices)) for _ in range(10)]
    left = [synk.get_value(rank, variable) for rank in range(n_ranks) for variable in (weights, state)]
    return losses, [x.tobytes() if isinstance(x, np.ndarray) else x.bit_generator.state for x in left]


@pytest.mark.skipif(not emulator.available(), reason="there is no g++ to emulate a GPU")
@pytest.mark.parametrize(("n_ranks", "num_slices"), [(1, 1), (2, 1), (1, 3)])
def test_dropout_is_recorded_with_the_numbers_that_it_has_without(gpus, recorded, n_ranks, num_slices):
    gpus(n_ranks)
    expected = dropped_out(n_ranks, num_slices)
    synk.close()
    assert recorded() == [0, 0]
    gpus(n_ranks, cuda_graphs=True)
    assert dropped_out(n_ranks, num_slices) == expected
    assert recorded() == [1, n_ranks - 1]
    assert len(set(expected[0])) == 10


# --- uploads meanwhile ----------------------------------------------------------------------------


@pytest.fixture
def stream(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    return stream


def test_a_buffer_that_grows_waits_for_the_end_of_a_recording(cupy, stream):
    graphs = Graphs(cupy, stream)
    uploader = Uploader(cupy, stream, stream.use, 1, graphs.lock)
    buffer, order = uploader.buffer(), Request("key", np.ones((8, 4)), SelectedRows(0, 8))
    capturing, records = [], stream.record
    stream.record = lambda event: (capturing.append(stream.is_capturing()), records(event))

    def load():
        stream.use()
        uploader.load(buffer, order)

    thread = threading.Thread(target=load)

    def run():
        thread.start()
        thread.join(0.05)

    graphs.record(run)
    thread.join()
    assert capturing == [False]
    np.testing.assert_array_equal(cupy.asnumpy(buffer.hand_out()), order.array)
    uploader.close()
