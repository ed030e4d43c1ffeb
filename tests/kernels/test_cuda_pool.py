"""Pooling in CUDA, on an emulator, against pooling by slices and by loops in C."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import normal
from support.cuda.provider import OnHost, needs_emulator
from synk.kernels.plain_pool import PlainPool
from synk.kernels.window import Pooling, Window, lengths, ordered

pytestmark = needs_emulator

plain, cuda = PlainPool(np), OnHost()
STRANGE = np.array([-np.inf, np.inf, np.nan, 0.0, 1.0, 2.0])
dtypes = st.sampled_from(["float32", "float64", "float16"])
LIMITS = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3}


@st.composite
def poolings(draw):
    """Draw a geometry and the shape of images: channels fill vectors, or do not."""
    size = draw(st.tuples(*[st.integers(1, 4)] * 2))
    stride = draw(st.tuples(*[st.integers(1, 3)] * 2))
    padding = tuple(tuple(draw(st.integers(0, n - 1)) for _ in range(2)) for n in size)
    sides = [draw(st.integers(max(1, n - sum(p)), 9)) for n, p in zip(size, padding, strict=True)]
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    shape = ordered(layout, draw(st.integers(0, 3)), draw(st.sampled_from([1, 3, 8, 16, 34])), *sides)
    return Pooling(Window(size, stride, padding), layout), shape


def same(value, expected):
    assert value.dtype == expected.dtype
    assert value.flags.c_contiguous
    np.testing.assert_array_equal(value, expected)


def close(value, expected, scale=1.0):
    assert value.flags.c_contiguous
    limit = LIMITS[value.dtype.name] * scale
    np.testing.assert_allclose(value.astype("float64"), expected, rtol=limit, atol=limit)


@settings(max_examples=40, deadline=None)
@given(poolings(), dtypes, st.sampled_from(["uint8", "int32"]), st.booleans())
def test_max_pool(case, dtype, index_dtype, strange):
    pooling, shape = case
    choices = STRANGE if strange else np.arange(-3.0, 3.0)  # with ties: the first one is taken
    x = np.random.default_rng(0).choice(choices, shape).astype(dtype)
    y, index = cuda.max_pool(pooling, index_dtype)(x)
    for value, expected in zip((y, index), plain.max_pool(pooling, index_dtype)(x), strict=True):
        same(value, expected)
    gy = normal(y.shape, dtype=dtype)
    gy[gy > 1] = np.inf  # where it is not wanted, it must not become NaN
    sides = lengths(pooling.layout, shape)[2:]
    gradient = cuda.max_pool_gradient(pooling)(gy, index, *sides)
    assert gradient.dtype == dtype
    close(gradient, plain.max_pool_gradient(pooling)(gy.astype("float64"), index, *sides), 16)


@settings(max_examples=40, deadline=None)
@given(poolings(), dtypes, st.booleans())
def test_avg_pool(case, dtype, count_padding):
    pooling, shape = case
    x = normal(shape, dtype=dtype)
    y = cuda.avg_pool(pooling, count_padding)(x)
    assert y.dtype == dtype
    close(y, plain.avg_pool(pooling, count_padding)(x.astype("float64")))
    gy, sides = normal(y.shape, 1, dtype), lengths(pooling.layout, shape)[2:]
    gradient = cuda.avg_pool_gradient(pooling, count_padding)(gy, *sides)
    close(gradient, plain.avg_pool_gradient(pooling, count_padding)(gy.astype("float64"), *sides), 16)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("n_images", "channels", "height"), [(2, 5, 7), (3, 64, 8), (0, 4, 2), (1, 300, 1), (1, 3, 100)]
)
def test_global_avg_pool(layout, dtype, n_images, channels, height):
    x = (normal(ordered(layout, n_images, channels, height, 7)) + 100).astype(dtype)
    expected = x.mean((2, 3) if layout == "NCHW" else (1, 2), dtype="float64")
    y = cuda.global_avg_pool(layout)(x)
    assert y.dtype == dtype
    limit = {"float32": 1e-6, "float64": 1e-14, "float16": 5e-4}[dtype]
    np.testing.assert_allclose(y.astype("float64"), expected, limit)
    place = np.empty_like(y)
    assert cuda.global_avg_pool(layout)(np.asfortranarray(x), out=place) is place
    same(place, y)
    with pytest.raises(ValueError, match="images of 0 x 3 pixels have no mean"):
        cuda.global_avg_pool(layout)(np.ones(ordered(layout, 1, 2, 0, 3), dtype))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_results_go_where_they_are_wanted(layout):
    pooling = Pooling(Window((3, 2), (2, 1), ((1, 0), (0, 1))), layout)
    x = normal(ordered(layout, 2, 8, 9, 8), dtype="float32")
    other = np.asfortranarray(x)
    y, index = cuda.max_pool(pooling, "uint8")(x)
    # A place that is no multiple of 16 bytes is written to one by one, with the same result.
    odd = np.empty(y.size + 1, "float32")[1:].reshape(y.shape)
    wanted = odd, np.full_like(index, 255)
    results = cuda.max_pool(pooling, "uint8")(other, out=wanted)
    for value, place, expected in zip(results, wanted, (y, index), strict=True):
        assert value is place
        same(value, expected)
    place = np.full_like(x, np.nan)
    runs = [
        (cuda.max_pool_gradient(pooling), (y, index, 9, 8)),
        (cuda.avg_pool_gradient(pooling, False), (y, np.int64(9), np.int64(8))),
    ]
    for run, inputs in runs:
        assert run(*inputs, out=place) is place
        same(run(np.asfortranarray(y), *inputs[1:]), place)
    with pytest.raises(ValueError, match="pass a C-contiguous array of dtype float32 and shape"):
        cuda.avg_pool(pooling, True)(x, out=np.empty(y.shape))


def test_a_gradient_of_another_shape_is_refused():
    pooling = Pooling(Window((2, 2), (2, 2)), "NHWC")
    gy, index = np.ones((1, 3, 3, 2), "float32"), np.zeros((1, 3, 3, 2), "uint8")
    with pytest.raises(ValueError, match=r"shape \(1, 3, 3, 2\); pooling gives \(1, 4, 4, 2\)"):
        cuda.max_pool_gradient(pooling)(gy, index, 8, 8)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 3, 2\); pooling gives \(1, 3, 3, 2\)"):
        cuda.max_pool_gradient(pooling)(gy, index[:, :2], 6, 6)


@pytest.mark.parametrize("wide", [False, True])
def test_large_windows_and_images_of_many_elements(monkeypatch, wide):
    """Beyond 2**30 elements 64 bits count them: here, from the first one on."""
    if wide:
        monkeypatch.setattr("synk.kernels.cuda.pool.MOST", 0)
    pooling = Pooling(Window((16, 17)), "NHWC")
    x = normal((1, 18, 18, 4), dtype="float32")
    y, index = cuda.max_pool(pooling, "int32")(x)
    for value, expected in zip((y, index), plain.max_pool(pooling, "int32")(x), strict=True):
        same(value, expected)
    assert index.max() > 255
    gradient = cuda.max_pool_gradient(pooling)(y, index, 18, 18)
    close(gradient, plain.max_pool_gradient(pooling)(y, index, 18, 18))
