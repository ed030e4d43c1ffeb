import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.op import Op

import synk.ops
from support.cuda import emulator
from support.cupy import stand_in, tape
from synk.compile import ArrayLinker, array_mode
from synk.gpu.dispatch.device_random import words_of
from synk.gpu.kernels import cudnn
from synk.gpu.speedups import captured, draws
from synk.gpu.speedups.captured import MOST, WARM_UP
from synk.gpu.speedups.graphs import CublasHandle, Graphs
from synk.gpu.speedups.linker import RecordingLinker


class Doubled(Op):
    """Twice its input, which is computed on the host."""

    itypes = otypes = (pt.dvector,)
    __props__ = ()

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]

    def __str__(self):
        return "Doubled"


ROWS = np.arange(12.0).reshape(3, 4)


@pytest.fixture
def graphs(cupy):
    """Return CUDA graphs of the stand-in."""
    return Graphs(cupy, cupy.cuda.Stream(non_blocking=True))


@pytest.fixture
def build(cupy, graphs):
    """Return a way to build a function that is captured; the stand-in counts what it does."""

    def function(inputs, outputs=(), host_ops="warn", **keywords):
        mode = array_mode(RecordingLinker(graphs, cupy, host_ops=host_ops))
        return pytensor.function(inputs, list(outputs), mode=mode, **keywords)

    return function


def launches(function, *arguments):
    stand_in.counts.reset()
    results = function(*arguments)
    return results, stand_in.counts.launches


def warm_up(function, *arguments):
    for _ in range(WARM_UP):
        function(*arguments)


def test_a_replay_computes_from_the_arguments_of_its_call(build):
    x, rate = pt.matrix("x"), pt.scalar("rate")
    f = build([x, rate], [pt.tanh(x @ x.T) * rate, (x * rate).sum()])
    for k in range(WARM_UP + 4):
        value = ROWS / (k + 1)
        outer, total = f(value, k)
        np.testing.assert_allclose(outer, np.tanh(value @ value.T) * k, rtol=1e-15)
        np.testing.assert_allclose(total, (value * k).sum(), rtol=1e-15)


def test_a_replay_launches_nothing_but_what_fills_its_slots(build):
    x, rate = pt.matrix("x"), pt.scalar("rate")
    f = build([x, rate], [pt.exp(pt.tanh(x @ x.T) * rate).sum(axis=0)])
    warm_up(f, ROWS, 2.0)
    _, plain = launches(f, ROWS, 2.0)  # the recording itself
    _, replayed = launches(f, ROWS, 2.0)
    assert plain > 3
    assert replayed == 1  # fills the rate; x is uploaded
    assert stand_in.counts.uploads == 1


def test_results_of_a_call_outlive_the_next(build):
    x = pt.vector("x")
    f = build([x], [x * 2])
    warm_up(f, np.ones(3))
    (first,) = f(np.ones(3))
    f(np.zeros(3))
    np.testing.assert_array_equal(first, [2, 2, 2])


def test_updates_go_where_the_old_values_are(build, device):
    x = pt.vector("x")
    v = pytensor.shared(np.zeros(3), name="v")
    f = build([x], [v.sum()], updates=[(v, pt.sqrt(v * v + x))])
    expected = np.zeros(3)
    for k in range(WARM_UP + 3):
        np.testing.assert_allclose(f(np.full(3, k + 1.0)), [expected.sum()], rtol=1e-14)
        expected = np.sqrt(expected**2 + k + 1)
        if k == WARM_UP:
            place = v.container.storage[0]
    assert v.container.storage[0] is place
    np.testing.assert_allclose(device.asnumpy(place), expected, rtol=1e-14)


def test_shared_variables_may_trade_places(build, device):
    a, b = pytensor.shared(np.zeros(2), name="a"), pytensor.shared(np.ones(2), name="b")
    f = build([], updates=[(a, b), (b, a)])
    for _ in range(WARM_UP + 3):
        f()
    assert device.asnumpy(a.container.storage[0]).tolist() == [1, 1]
    assert device.asnumpy(b.container.storage[0]).tolist() == [0, 0]


def test_each_shape_has_its_recording(build, graphs):
    x = pt.matrix("x")
    f = build([x], [x.mean(axis=0)])
    for _ in range(WARM_UP + 2):
        for n_rows in (1, 2, 3):
            np.testing.assert_allclose(f(ROWS[:n_rows]), [ROWS[:n_rows].mean(axis=0)], rtol=1e-15)


def test_what_is_read_on_the_host_is_part_of_the_recording(build):
    x, length = pt.vector("x"), pt.lscalar("length")
    f = build([x, length], [(x * 2)[:length]])
    for _ in range(WARM_UP + 2):
        for n in (1, 2, 3):
            (found,) = f(np.arange(4.0), n)
            np.testing.assert_array_equal(found, 2.0 * np.arange(n))


def test_numbers_that_differ_in_each_call_are_forgotten(build, monkeypatch):
    monkeypatch.setattr(captured, "MOST_KEYS", 3)
    x, length = pt.vector("x"), pt.lscalar("length")
    f = build([x, length], [(x * 2)[:length]])
    made = []
    monkeypatch.setattr(captured.Captured, "_record", lambda program, *given: made.append(program))
    for n in [*range(1, 8), 7, 7]:
        f(np.arange(9.0), n)
    (program,) = made  # 7 came often enough
    assert len(program._calls) <= 3


def test_what_is_not_read_makes_no_difference(build):
    x, unread = pt.vector("x"), pt.scalar("unread")
    f = build([x, unread], [x * 2], on_unused_input="ignore")
    warm_up(f, np.ones(3), 0.0)
    f(np.ones(3), 1.0)
    _, replayed = launches(f, np.ones(3), 2.0)
    assert replayed == 0


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_a_value_that_is_set_is_written_where_it_is_read(build, graphs, monkeypatch, shape):
    v = pytensor.shared(np.zeros(shape), name="v")
    f = build([], [v + 1])
    warm_up(f)
    f()
    place = v.container.storage[0]
    monkeypatch.setattr(graphs, "record", None)
    for k in range(2 * MOST):
        v.set_value(np.full(shape, float(k)))
        np.testing.assert_array_equal(f(), [np.full(shape, k + 1.0)])
        assert v.container.storage[0] is place


def test_a_value_of_another_shape_has_a_recording_of_its_own(build):
    v = pytensor.shared(np.zeros(3), name="v")
    f = build([], [v + 1])
    warm_up(f)
    for length in (3, 4, 3):
        v.set_value(np.ones(length))
        np.testing.assert_array_equal(f(), [np.full(length, 2.0)])


def test_places_that_keep_changing_end_it_with_a_warning(build, device):
    v = pytensor.shared(np.zeros(3), name="v")
    f = build([], [v + 1])
    warm_up(f)

    def move(k):
        v.container.storage[0] = device.asarray(np.full(3, float(k)))
        np.testing.assert_array_equal(f(), [np.full(3, k + 1.0)])

    for k in range(MOST):
        move(k)
    with pytest.warns(UserWarning, match=f"recorded {MOST} times"):
        move(MOST)
    v.set_value(np.full(3, 9.0))
    np.testing.assert_array_equal(f(), [np.full(3, 10.0)])


def test_what_computes_on_the_host_is_not_captured(build):
    x = pt.vector("x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        f = build([x], [Doubled()(x) + 1])
    assert "not captured in a CUDA graph: Doubled compute on the host" in " ".join(
        str(warning.message) for warning in caught
    )
    for k in range(WARM_UP + 2):
        np.testing.assert_array_equal(f(np.full(2, k)), [np.full(2, 2.0 * k + 1)])


def test_a_launch_that_cannot_be_recorded_ends_it_with_a_warning(build, graphs, monkeypatch):
    x = pt.vector("x")
    v = pytensor.shared(np.zeros(3), name="v")
    f = build([x], updates=[(v, v + x)])
    warm_up(f, np.ones(3))

    record = graphs.record
    monkeypatch.setattr(graphs, "record", lambda run: record(lambda: (run(), tape.refuse())))
    with pytest.warns(UserWarning, match="operation not permitted when stream is capturing"):
        f(np.ones(3))
    f(np.ones(3))
    np.testing.assert_array_equal(stand_in.asnumpy(v.container.storage[0]), np.full(3, WARM_UP + 2.0))


def test_an_error_names_its_node_in_a_captured_function(build):
    x, y = pt.vector("x"), pt.vector("y")
    f = build([x, y], [x + y])
    with pytest.raises(ValueError, match="x: "):
        f(np.ones(2), np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_recorded_on_a_handle_of_their_own(build, dtype):
    x, y, v = pt.tensor3("x", dtype=dtype), pt.tensor3("y", dtype=dtype), pt.vector("v", dtype=dtype)
    f = build([x, y, v], [x @ y, x[0] @ y[1], x[0] @ v, v @ y[0]])
    for k in range(WARM_UP + 3):
        left = np.arange(24.0, dtype=dtype).reshape(2, 3, 4) + k
        right = np.arange(40.0, dtype=dtype).reshape(2, 4, 5) - k
        vector = np.full(4, 1.0 + k, dtype)
        expected = [left @ right, left[0] @ right[1], left[0] @ vector, vector @ right[0]]
        for one, other in zip(f(left, right, vector), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:convolutions run without cuDNN")
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_without_cudnn_are_recorded(build, monkeypatch, stride):
    monkeypatch.setattr(cudnn, "serves", lambda xp: False)
    x, w = pt.ftensor4("x"), pt.ftensor4("w")
    y = synk.ops.conv2d(x, w, stride=stride, padding=1)
    outputs = [y, *pt.grad((y**2).sum(), [x, w])]
    f, plain = build([x, w], outputs), pytensor.function([x, w], outputs, mode=array_mode())
    for k in range(WARM_UP + 3):
        random = np.random.default_rng(k)
        values = [random.normal(size=lengths).astype("float32") for lengths in ((2, 3, 6, 5), (4, 3, 3, 3))]
        results, n_launches = launches(f, *values)
        for result, expected in zip(results, plain(*values), strict=True):
            # float32 sums of some 100 terms, gradients of squares up to 100: another order, other last bits.
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert n_launches == 0  # a replay is no launch of a kernel


@pytest.mark.skipif(not emulator.available(), reason="there is no g++ to emulate a GPU")
def test_kernels_are_recorded(build):
    x, bias, rate = pt.fmatrix("x"), pt.fvector("bias"), pt.fscalar("rate")
    images, scale = pt.ftensor4("images"), pt.fvector("scale")
    v = pytensor.shared(np.zeros((3, 4), "float32"), "v")
    means, variances = [pytensor.shared(np.ones(3, "float32"), name) for name in ("means", "variances")]
    normed, _ = synk.ops.batch_norm(
        synk.ops.max_pool2d(images, 2), scale, scale, means, variances, train=True
    )
    f = build([x, bias, rate, images, scale], [normed * 2 + 1], updates=[(v, pt.tanh(v + bias * rate) - x)])
    expected = np.zeros((3, 4), "float32")
    for k in range(WARM_UP + 4):
        value, added = ROWS.astype("float32") / (k + 2), np.arange(4, dtype="float32") - k
        image = np.random.default_rng(k).normal(size=(2, 3, 4, 6)).astype("float32")
        weight = np.arange(1.0, 4.0, dtype="float32") + k
        (result,), n_launches = launches(f, value, added, 0.5 + k, image, weight)
        expected = np.tanh(expected + added * np.float32(0.5 + k)) - value
        np.testing.assert_allclose(v.container.storage[0].get(), expected, rtol=1e-5, atol=1e-6)
        pooled = image.reshape(2, 3, 2, 2, 3, 2).max(axis=(3, 5))
        mean, variance = pooled.mean(axis=(0, 2, 3), keepdims=True), pooled.var(axis=(0, 2, 3), keepdims=True)
        normal = (pooled - mean) / np.sqrt(variance + 1e-5)
        factor = weight[None, :, None, None]
        np.testing.assert_allclose(result, (normal * factor + factor) * 2 + 1, rtol=1e-3, atol=1e-3)
    assert n_launches == 1  # fills the rate; all else is replayed


# --- random numbers --------------------------------------------------------------------------------------

draws_on_the_device = pytest.mark.skipif(not emulator.available(), reason="there is no g++ to emulate a GPU")


def random_function(linker, still=False):
    """Return a function that draws in several ways, and its states; ``still``, it leaves one alone."""
    one, two = (pytensor.shared(np.random.default_rng(seed), name=f"state {seed}") for seed in (3, 4))
    x = pt.fmatrix("x")
    middle, uniform = pt.random.uniform(size=x.shape, rng=one, dtype="float32", return_next_rng=True)
    last, normal = pt.random.normal(x, 1, rng=middle, dtype="float32", return_next_rng=True)
    y, update = synk.ops.dropout(x, 0.25, two)
    updates = dict([(one, last)] if still else [(one, last), update])
    return pytensor.function([x], [uniform, normal * y], updates=updates, mode=array_mode(linker)), (one, two)


@draws_on_the_device
@pytest.mark.parametrize("still", [False, True])
def test_random_numbers_are_those_of_plain_calls(cupy, graphs, still):
    f, states = random_function(RecordingLinker(graphs, cupy, host_ops="raise"), still)
    plain, expected_states = random_function(ArrayLinker(cupy, host_ops="raise"), still)
    values = ROWS.astype("float32")
    for k in range(WARM_UP + 5):
        for found, expected in zip(f(values + k), plain(values + k), strict=True):
            np.testing.assert_array_equal(found, expected)
        for state, expected in zip(states, expected_states, strict=True):
            assert state.get_value().bit_generator.state == expected.get_value().bit_generator.state
        if k == WARM_UP + 2:  # another generator goes on with the same recording
            for state in (*states, *expected_states):
                state.set_value(np.random.default_rng(99))
    results, replayed = launches(f, values)
    assert replayed == 0
    assert stand_in.counts.uploads == 2  # x, and the words of all draws
    assert not np.array_equal(results[0], f(values)[0])


@draws_on_the_device
def test_random_numbers_of_a_loop_are_those_of_plain_calls(cupy, graphs):
    def step(before, state):
        after, drawn = pt.random.normal(size=(3,), rng=state, dtype="float32", return_next_rng=True)
        return before * np.float32(0.5) + drawn, after

    def build(linker):
        state, x = pytensor.shared(np.random.default_rng(3)), pt.fvector("x")
        y, last = pytensor.scan(step, outputs_info=[x, state], n_steps=4, return_updates=False)
        return pytensor.function([x], y[-1], updates=[(state, last)], mode=array_mode(linker))

    f = build(RecordingLinker(graphs, cupy, host_ops="raise"))
    plain, value = build(ArrayLinker(cupy, host_ops="raise")), np.arange(3, dtype="float32")
    for k in range(WARM_UP + 4):
        np.testing.assert_array_equal(f(value + k), plain(value + k))
    _, replayed = launches(f, value)
    assert replayed == 0


def test_more_draws_than_there_is_room_for_end_it(cupy, monkeypatch):
    monkeypatch.setattr(draws, "MOST_DRAWS", 1)
    given = draws.Draws(cupy)
    generator = given.stand_in(0)
    words_of(generator)
    with pytest.raises(RuntimeError, match="more than 1 times"):
        words_of(generator)


def test_a_status_of_cublas_is_an_error(cupy):
    with pytest.raises(RuntimeError, match="cublasGemmEx failed with status 15"):
        CublasHandle(cupy).gemmEx(0, *[0] * 18)


def test_what_a_warm_call_leaves_is_not_in_the_memory_of_recordings(cupy, monkeypatch):
    made = []
    graphs = Graphs(cupy, cupy.cuda.Stream(non_blocking=True))
    warm = graphs.warm
    monkeypatch.setattr(graphs, "warm", lambda run: made.append(warm(run)) or made[-1])
    mode = array_mode(RecordingLinker(graphs, cupy))
    v = pytensor.shared(np.zeros((1, 3)), name="v")
    f = pytensor.function([], [], updates=[(v, pt.concatenate([v, v + 1]))], mode=mode)
    for n in range(1, WARM_UP + 1):
        f()
        assert v.container.storage[0].shape == (2**n, 3)
    (values,) = made
    assert v.container.storage[0] is not values[0]
    np.testing.assert_array_equal(cupy.asnumpy(v.container.storage[0])[:, 0], [0, 1, 1, 2])


def test_memory_of_recordings_stays_theirs_when_their_pool_frees_its_blocks(cupy):
    made = []
    cupy.cuda.Memory = lambda n_bytes: made.append(n_bytes) or ("memory", n_bytes)
    cupy.cuda.MemoryPointer = lambda memory, offset: (memory, offset)
    graphs = Graphs(cupy, cupy.cuda.Stream(non_blocking=True))
    assert graphs._pool.allocator(512) == (("memory", 512), 0)
    assert graphs._kept == [("memory", 512)]
    graphs.close()
    assert graphs._kept == []
