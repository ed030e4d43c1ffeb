"""The graphs and arrays that cuDNN gets, computed by a stand-in, against the definitions of the Ops."""

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from support.cases.images import Refuses, convolutions, node_of, normal, perform
from support.cupy import fake_cublas, stand_in
from synk.compile.dispatch import array_funcify
from synk.compile.tables import accepts_out
from synk.gpu.kernels.cudnn import CuDnn
from synk.gpu.kernels.cudnn.convolution import MOST_SHAPES
from synk.ops.convolve import Conv2d, Conv2dInputGradient, Conv2dWeightGradient
from synk.ops.kernels.choose import convolution_kernels
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.window import Convolution, Window, lengths

on_stand_ins = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

# The next window would start beyond the padding, and the first lies wholly in it.
AROUND = Convolution(Window(None, (3, 3), ((3, 2), (4, 4)))), (2, 1, 5, 6), (2, 1, 2, 2), (2, 2, 3, 5)
GROUPS = Convolution(Window(None, (2, 1), ((1, 0), (0, 2)), (1, 2)), 2, "NHWC")
IN_GROUPS = GROUPS, (3, 7, 6, 4), (6, 2, 3, 3), (3, 3, 4, 6)


def check(cupy, op, *values, rtol=1e-10, atol=1e-12):
    """Hold an entry on the stand-in to the definition, with a new result and in a given array."""
    node, expected = node_of(op, *values), perform(op, *values)[0]
    implementation = array_funcify(op, node, cupy)
    assert accepts_out(implementation, np)
    arrays = [stand_in.asarray(v) if np.ndim(v) else np.int64(v) for v in values]
    stand_in.counts.reset()
    result = implementation(*arrays)
    out = stand_in.asarray(np.full_like(expected, 77))
    assert implementation(*arrays, out=out) is out
    assert stand_in.counts.downloads == 0
    for value in (result, out):
        assert value.flags.c_contiguous
        np.testing.assert_allclose(value.get(), expected, rtol=rtol, atol=atol, strict=True)
    for array, value in zip(arrays, values, strict=True):
        np.testing.assert_array_equal(stand_in.asnumpy(array), value)


def forward(relu, has_bias):
    def of(convolution, x, w, y):
        return Conv2d(convolution, relu), normal(x, 0), normal(w, 1), *[normal(w[0], 2)] * has_bias

    return of


def input_gradient(convolution, x, w, y):
    return Conv2dInputGradient(convolution), normal(y, 0), normal(w, 1), *lengths(convolution.layout, x)[2:]


def weight_gradient(convolution, x, w, y):
    return Conv2dWeightGradient(convolution), normal(x, 0), normal(y, 1), *w[2:]


FORWARD = [forward(relu, has_bias) for relu in (False, True) for has_bias in (False, True)]


@on_stand_ins
@given(convolutions())
@example(AROUND)
@example(IN_GROUPS)
@pytest.mark.parametrize("operation", [*FORWARD, input_gradient, weight_gradient])
def test_like_the_oracle(cudnn, cupy, operation, case):
    check(cupy, *operation(*case))


def cases(dtype):
    """Return each operation's Op and arrays, of an image in two groups."""
    convolution, x, w, y = IN_GROUPS
    x, w, y, bias = (normal(shape, seed, dtype) for seed, shape in enumerate((x, w, y, w[:1])))
    return [
        (Conv2d(convolution, True), x, w, bias),
        (Conv2dInputGradient(convolution), y, w, 7, 6),
        (Conv2dWeightGradient(convolution), x, y, 3, 3),
    ]


def implementations(cupy, instead=None):
    kernels, convolution = CuDnn(cupy, instead or Refuses()), IN_GROUPS[0]
    return [
        kernels.forward(convolution, True, True),
        kernels.input_gradient(convolution),
        kernels.weight_gradient(convolution),
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(
    ("dtype", "rtol"), [("float32", 1e-6), ("float64", 1e-12), ("float16", 1e-3), ("bfloat16", 1e-2)]
)
def test_cudnn_itself_computes_each_dtype(cudnn, cupy, which, dtype, rtol):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 comes with ml_dtypes").bfloat16
    op, *values = cases("float64")[which]
    rounded = [value.astype(dtype) if np.ndim(value) else value for value in values]
    exact = [value.astype("float64") if np.ndim(value) else value for value in rounded]
    result = implementations(cupy)[which](*map(stand_in_array, rounded))
    assert result.dtype == dtype
    np.testing.assert_allclose(result.get().astype("float64"), perform(op, *exact)[0], rtol=rtol, atol=rtol)
    names = ["forward", "input gradient", "weight gradient"]
    assert [entry[:2] for entry in cudnn.log if entry[0] == "plan"] == [("plan", names[which])]


def noted(function, seen):
    """Return a function of arrays that notes their dtypes."""

    def run(*arrays, **keywords):
        seen.extend(array.dtype for array in arrays)
        return function(*arrays, **keywords)

    return run


def stand_in_array(value):
    return stand_in.ndarray(value) if np.ndim(value) else value


@pytest.mark.parametrize("which", range(3))
def test_arrays_that_cudnn_cannot_read_are_copied(cudnn, cupy, which):
    op, *values = cases("float32")[which]
    expected = perform(op, *[v.astype("float64") if np.ndim(v) else v for v in values])[0]

    def shifted(value):
        flat = np.zeros(value.size + 1, value.dtype)
        assert flat[1:].ctypes.data % 16
        flat[1:] = value.ravel()
        return flat[1:].reshape(value.shape)

    def scattered(value):
        return np.repeat(value, 2, axis=-1)[..., ::2]

    for lay in (shifted, scattered):
        arrays = [stand_in.ndarray(lay(v)) if np.ndim(v) else v for v in values]
        out = stand_in.ndarray(shifted(np.zeros_like(expected, "float32")))
        result = implementations(cupy)[which](*arrays, out=out)
        assert result is out
        np.testing.assert_allclose(out.get(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", range(3))
def test_a_result_of_another_dtype_is_converted(cudnn, cupy, which):
    op, *values = cases("float32")[which]
    expected = perform(op, *values)[0]
    out = stand_in.asarray(np.zeros_like(expected, "float64"))
    assert implementations(cupy)[which](*map(stand_in_array, values), out=out) is out
    np.testing.assert_allclose(out.get(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("switch", [None, "0", "1"])
def test_tf32_is_one_switch(cudnn, cupy, monkeypatch, switch):
    if switch is not None:
        monkeypatch.setenv("CUPY_TF32", switch)
    for which, (op, *values) in enumerate(cases("float32")):
        result = implementations(cupy)[which](*map(stand_in_array, values)).get()
        exact = perform(op, *[v.astype("float64") if np.ndim(v) else v for v in values])[0]
        error = np.abs(result - exact).max()
        assert (error > 1e-4) == (switch == "1")
        assert error < 0.1


def test_the_switch_is_looked_at_in_each_call(cudnn, cupy, monkeypatch):
    _, *values = cases("float32")[0]
    forward = implementations(cupy)[0]
    exact = forward(*map(stand_in_array, values)).get()
    monkeypatch.setenv("CUPY_TF32", "1")
    assert (forward(*map(stand_in_array, values)).get() != exact).any()
    monkeypatch.delenv("CUPY_TF32")
    np.testing.assert_array_equal(forward(*map(stand_in_array, values)).get(), exact)


def test_products_of_float64_know_no_tf32(cudnn, cupy, monkeypatch):
    monkeypatch.setenv("CUPY_TF32", "1")
    op, *values = cases("float64")[0]
    result = implementations(cupy)[0](*map(stand_in_array, values)).get()
    np.testing.assert_allclose(result, perform(op, *values)[0], rtol=1e-12)


def test_relu_keeps_nan(cudnn, cupy):
    x = np.array([-1.0, np.nan, 2.0]).reshape(1, 1, 1, 3)
    forward = CuDnn(cupy, Refuses()).forward(Convolution(Window()), True, False)
    y = forward(stand_in.asarray(x), stand_in.asarray(np.ones((1, 1, 1, 1)))).get()
    np.testing.assert_array_equal(y.ravel(), [0, np.nan, 2])


# --- when cuDNN has nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(3))
def test_without_an_engine_products_of_matrices_compute_silently(cudnn, cupy, which):
    cudnn.refuses = lambda graph: True
    op, *values = cases("float64")[which]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(cupy, op, *values)
    assert not any(entry[0] in ("plan", "execute") for entry in cudnn.log)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("in_place", [False, True])
def test_without_an_engine_16_bits_are_computed_in_float32_and_rounded_once(
    cudnn, cupy, monkeypatch, which, in_place
):
    cudnn.refuses = lambda graph: True
    op, *values = cases("float16")[which]
    exact = perform(op, *[v.astype("float32") if np.ndim(v) else v for v in values])[0]
    seen, implementation = [], implementations(cupy, Im2col(cupy))[which]
    monkeypatch.setattr(cupy, "add", noted(cupy.add, seen), raising=False)
    fake_cublas.computed.clear()
    out = stand_in_array(np.full_like(exact, 77)) if in_place else None
    result = implementation(*map(stand_in_array, values), out=out)
    assert {*seen} <= {np.dtype("float32")}
    assert {kinds[1:3] for kinds in fake_cublas.computed} == {(fake_cublas.R_32F, fake_cublas.R_32F)}
    assert result is out if in_place else result.dtype == "float16"
    np.testing.assert_allclose(result.get().astype("float32"), exact, rtol=2**-10, atol=2**-20)


def test_a_failure_of_cudnn_is_told_once_and_computed_otherwise(cudnn, cupy):
    def fail(graph):
        raise RuntimeError("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED")

    cudnn.refuses = fail
    op, *values = cases("float64")[0]
    node = node_of(op, *values)
    forward = array_funcify(op, node, cupy)
    with pytest.warns(RuntimeWarning, match="matrix products .*SUBLIBRARY_LOADING_FAILED") as told:
        results = [forward(*map(stand_in_array, values)).get() for _ in range(3)]
    assert len(told) == 1
    np.testing.assert_allclose(results[2], perform(op, *values)[0], rtol=1e-10)


def test_dtypes_that_differ_are_left_to_the_other_provider(cudnn, cupy):
    op, x, w, bias = cases("float64")[0]
    forward = array_funcify(op, node_of(op, x, w, bias), cupy)
    y = forward(stand_in.asarray(x), stand_in.asarray(w.astype("float32")), stand_in.asarray(bias))
    np.testing.assert_allclose(y.get(), perform(op, x, w, bias)[0], rtol=1e-5, atol=1e-5)
    assert cudnn.log == []


def test_shapes_that_do_not_fit_are_refused_before_cudnn_reads_beyond_them(cudnn, cupy):
    forward, input_gradient, weight_gradient = implementations(cupy)
    (_, x, w, bias), (_, gy, *_), _ = cases("float64")
    x, w, bias, gy = map(stand_in.asarray, (x, w, bias, gy))
    with pytest.raises(ValueError, match="channels"):
        forward(x, w[:, :1], bias)
    with pytest.raises(ValueError, match=r"bias has shape \(5,\); give it \(6,\)"):
        forward(x, w, bias[:5])
    with pytest.raises(ValueError, match=r"gy has shape .* the convolution gives"):
        input_gradient(gy, w, 9, 6)
    with pytest.raises(ValueError, match=r"gy has shape .* the convolution gives"):
        weight_gradient(x, gy, 2, 3)
    with pytest.raises(ValueError, match="as many images"):
        weight_gradient(x, gy[:2], 3, 3)
    assert cudnn.log == []


# --- what is kept ----------------------------------------------------------------------------------------


def asked(cudnn, what):
    return [entry for entry in cudnn.log if entry[0] == what]


def test_a_plan_is_made_once_for_all_that_need_it(cudnn, cupy):
    _, *values = cases("float32")[0]
    arrays = [*map(stand_in_array, values)]
    for _ in range(2):
        forward = implementations(cupy)[0]
        for _ in range(3):
            forward(*arrays)
    assert len(asked(cudnn, "plan")) == len(asked(cudnn, "handle")) == 1
    assert len(asked(cudnn, "execute")) == 6
    implementations(cupy)[0](*[stand_in.asarray(value.astype("float64")) for value in values])
    implementations(cupy)[0](stand_in.asarray(np.concatenate([values[0]] * 2)), *arrays[1:])
    assert len(asked(cudnn, "plan")) == 3
    assert len(asked(cudnn, "handle")) == 1


def test_an_implementation_forgets_the_oldest_shapes_and_the_process_does_not(cudnn, cupy):
    forward = CuDnn(cupy, Refuses()).forward(Convolution(Window()))
    w = stand_in.asarray(np.ones((1, 1, 1, 1)))
    for _ in range(2):
        for n in range(1, MOST_SHAPES + 3):
            forward(stand_in.asarray(np.ones((n, 1, 1, 1))), w)
    assert len(forward._plans) == MOST_SHAPES
    assert len(asked(cudnn, "plan")) == MOST_SHAPES + 2


def test_nothing_but_the_result_is_allocated_when_all_is_known(cudnn, cupy):
    _, *values = cases("float32")[2]
    arrays = [*map(stand_in_array, values)]
    gradient = implementations(cupy)[2]
    out = gradient(*arrays)
    allocated = len(cupy.allocated)
    stand_in.counts.reset()
    gradient(*arrays, out=out)
    assert len(cupy.allocated) == allocated == 1
    assert stand_in.counts == stand_in.Counts()


def test_cupy_gets_cudnn_where_it_is_and_numpy_never(cudnn, cupy):
    assert isinstance(convolution_kernels(cupy, "float32"), CuDnn)
    assert isinstance(convolution_kernels(cupy, "float16"), CuDnn)
    assert not isinstance(convolution_kernels(np, "float32"), CuDnn)
    assert not isinstance(convolution_kernels(stand_in, "float32"), CuDnn)
