"""Pooling by loops in C, and in CUDA on an emulator, against pooling by slices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import normal
from support.cuda.provider import OnHost, needs_emulator
from support.slow import slow
from synk.ops.kernels.loops import LoopKernels, available
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.window import Pooling, Window, lengths, ordered

plain, loops = PlainPool(np), LoopKernels(np)
needs_compiler = pytest.mark.skipif(not available(), reason="there is no C compiler")
of_both = pytest.mark.parametrize(
    "kernels",
    [
        pytest.param(loops, marks=needs_compiler, id="loops"),
        pytest.param(OnHost(), marks=needs_emulator, id="cuda"),
    ],
)
STRANGE = np.array([-np.inf, np.inf, np.nan, 0.0, 1.0, 2.0])
LIMITS = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3}
dtypes = st.sampled_from(list(LIMITS))


def known(kernels, dtype):
    """Return ``dtype``, or float32 for the loops in C, which have no 16 bits."""
    return "float32" if kernels is loops and dtype == "float16" else dtype


@st.composite
def poolings(draw):
    """Draw a geometry and the shape of images: channels fill vectors, or do not."""
    size = draw(st.tuples(*[st.integers(1, 5)] * 2))
    stride = draw(st.tuples(*[st.integers(1, 4)] * 2))
    padding = tuple(tuple(draw(st.integers(0, n - 1)) for _ in range(2)) for n in size)
    sides = [draw(st.integers(max(1, n - sum(p)), 12)) for n, p in zip(size, padding, strict=True)]
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    shape = ordered(layout, draw(st.integers(0, 3)), draw(st.sampled_from([1, 3, 8, 16, 33, 34])), *sides)
    return Pooling(Window(size, stride, padding), layout), shape


def same(value, expected):
    assert value.dtype == expected.dtype
    assert value.flags.c_contiguous
    np.testing.assert_array_equal(value, expected)


def close(value, expected, scale=1.0):
    assert value.flags.c_contiguous
    limit = LIMITS[value.dtype.name] * scale
    np.testing.assert_allclose(value.astype("float64"), expected, rtol=limit, atol=limit)


@of_both
@settings(max_examples=60, deadline=None)
@given(poolings(), dtypes, st.sampled_from(["uint8", "int32"]), st.booleans())
def test_max_pool(kernels, case, dtype, index_dtype, strange):
    (pooling, shape), dtype = case, known(kernels, dtype)
    choices = STRANGE if strange else np.arange(-3.0, 3.0)  # with ties: the first one is taken
    x = np.random.default_rng(0).choice(choices, shape).astype(dtype)
    y, index = kernels.max_pool(pooling, index_dtype)(x)
    for value, expected in zip((y, index), plain.max_pool(pooling, index_dtype)(x), strict=True):
        same(value, expected)
    gy = normal(y.shape, dtype=dtype)
    gy[gy > 1] = np.inf  # where it is not wanted, it must not become NaN
    sides = lengths(pooling.layout, shape)[2:]
    gradient = kernels.max_pool_gradient(pooling)(gy, index, *sides)
    assert gradient.dtype == dtype
    close(gradient, plain.max_pool_gradient(pooling)(gy.astype("float64"), index, *sides), 16)


@of_both
@settings(max_examples=60, deadline=None)
@given(poolings(), dtypes, st.booleans())
def test_avg_pool(kernels, case, dtype, count_padding):
    (pooling, shape), dtype = case, known(kernels, dtype)
    x = normal(shape, dtype=dtype)
    y = kernels.avg_pool(pooling, count_padding)(x)
    assert y.dtype == dtype
    close(y, plain.avg_pool(pooling, count_padding)(x.astype("float64")))
    gy, sides = normal(y.shape, 1, dtype), lengths(pooling.layout, shape)[2:]
    gradient = kernels.avg_pool_gradient(pooling, count_padding)(gy, *sides)
    close(gradient, plain.avg_pool_gradient(pooling, count_padding)(gy.astype("float64"), *sides), 16)


@of_both
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("n_images", "channels", "height"),
    [(2, 5, 7), (3, 64, 8), (3, 64, 1), (0, 4, 2), (1, 300, 1), (1, 3, 100)],
)
def test_global_avg_pool(kernels, layout, dtype, n_images, channels, height):
    dtype = known(kernels, dtype)
    x = (normal(ordered(layout, n_images, channels, height, 7)) + 100).astype(dtype)
    expected = x.mean((2, 3) if layout == "NCHW" else (1, 2), dtype="float64")
    y = kernels.global_avg_pool(layout)(x)
    assert y.dtype == dtype
    limit = {"float32": 1e-6, "float64": 1e-14, "float16": 5e-4}[dtype]
    np.testing.assert_allclose(y.astype("float64"), expected, limit)
    place = np.empty_like(y)
    assert kernels.global_avg_pool(layout)(np.asfortranarray(x), out=place) is place
    same(place, y)
    with pytest.raises(ValueError, match="images of 0 x 3 pixels have no mean"):
        kernels.global_avg_pool(layout)(np.ones(ordered(layout, 1, 2, 0, 3), dtype))


@of_both
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("n_channels", [5, 8])
def test_results_go_where_they_are_wanted(kernels, layout, n_channels):
    pooling = Pooling(Window((3, 2), (2, 1), ((1, 0), (0, 1))), layout)
    x = normal(ordered(layout, 2, n_channels, 9, 8), dtype="float32")
    other = np.asfortranarray(x)
    y, index = kernels.max_pool(pooling, "uint8")(x)
    # A place that is no multiple of 16 bytes is written to one by one, with the same result.
    odd = np.empty(y.size + 1, "float32")[1:].reshape(y.shape)
    wanted = odd, np.full_like(index, 255)
    results = kernels.max_pool(pooling, "uint8")(other, out=wanted)
    for value, place, expected in zip(results, wanted, (y, index), strict=True):
        assert value is place
        same(value, expected)
    place = np.full_like(x, np.nan)
    runs = [
        (kernels.max_pool_gradient(pooling), (y, index, 9, 8)),
        (kernels.avg_pool_gradient(pooling, False), (y, np.int64(9), np.int64(8))),
    ]
    for run, inputs in runs:
        assert run(*inputs, out=place) is place
        same(run(np.asfortranarray(y), *inputs[1:]), place)
    mean = np.full_like(y, np.nan)
    assert kernels.avg_pool(pooling, True)(other, out=mean) is mean
    same(mean, kernels.avg_pool(pooling, True)(x))
    if kernels is not loops:
        with pytest.raises(ValueError, match="pass a C-contiguous array of dtype float32 and shape"):
            kernels.avg_pool(pooling, True)(x, out=np.empty(y.shape))


@of_both
def test_a_gradient_of_another_shape_is_refused(kernels):
    pooling = Pooling(Window((2, 2), (2, 2)), "NHWC")
    gy, index = np.ones((1, 3, 3, 2), "float32"), np.zeros((1, 3, 3, 2), "uint8")
    with pytest.raises(ValueError, match=r"shape \(1, 3, 3, 2\); pooling gives \(1, 4, 4, 2\)"):
        kernels.max_pool_gradient(pooling)(gy, index, 8, 8)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 3, 2\); pooling gives \(1, 3, 3, 2\)"):
        kernels.max_pool_gradient(pooling)(gy, index[:, :2], 6, 6)
    with pytest.raises(ValueError, match="pooling gives"):
        kernels.avg_pool_gradient(pooling, True)(gy, 8, 8)


@of_both
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("wide", [False, slow(True)])
def test_large_windows_and_images_of_many_elements(monkeypatch, kernels, layout, wide):
    """Count elements in 64 bits, as CUDA does beyond 2**30 of them: here, from the first one on."""
    if wide:
        monkeypatch.setattr("synk.gpu.kernels.cuda.pool.MOST", 0)
    pooling = Pooling(Window((16, 17)), layout)
    x = normal(ordered(layout, 1, 4, 18, 18), dtype="float32")
    x[0, -1, -1, -1] = 100
    y, index = kernels.max_pool(pooling, "int32")(x)
    for value, expected in zip((y, index), plain.max_pool(pooling, "int32")(x), strict=True):
        same(value, expected)
    assert index.max() == 16 * 17 - 1
    gradient = kernels.max_pool_gradient(pooling)(y, index, 18, 18)
    close(gradient, plain.max_pool_gradient(pooling)(y, index, 18, 18))
