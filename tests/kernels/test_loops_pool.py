"""Pooling by loops in C against pooling by slices, and against the definition on images of few pixels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synk.kernels.loops import LoopKernels, available
from synk.kernels.plain_pool import PlainPool
from synk.kernels.window import Pooling, Window, ordered

pytestmark = pytest.mark.skipif(not available(), reason="there is no C compiler")

plain, loops = PlainPool(np), LoopKernels(np)
STRANGE = np.array([-np.inf, np.inf, np.nan, 0.0, 1.0, 2.0])
dtypes = st.sampled_from(["float32", "float64"])


@st.composite
def poolings(draw):
    """Draw a geometry and the shape of images for it."""
    size = draw(st.tuples(*[st.integers(1, 5)] * 2))
    stride = draw(st.tuples(*[st.integers(1, 4)] * 2))
    padding = tuple(tuple(draw(st.integers(0, n - 1)) for _ in range(2)) for n in size)
    sides = [draw(st.integers(max(1, n - sum(p)), 12)) for n, p in zip(size, padding, strict=True)]
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    n_images, n_channels = draw(st.integers(0, 3)), draw(st.sampled_from([1, 3, 16, 33]))
    return (
        Pooling(Window(size, stride, padding), layout),
        ordered(layout, n_images, n_channels, *sides),
        sides,
    )


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def equal(value, expected):
    assert value.dtype == expected.dtype
    assert value.flags.c_contiguous
    np.testing.assert_array_equal(value, expected)


def close(value, expected):
    assert value.dtype == expected.dtype
    assert value.flags.c_contiguous
    limit = {"float32": 3e-6, "float64": 1e-14}[expected.dtype.name]
    np.testing.assert_allclose(value, expected, rtol=0, atol=limit * 25)


@settings(max_examples=80, deadline=None)
@given(poolings(), dtypes, st.sampled_from(["uint8", "int32"]), st.booleans())
def test_max_pool(case, dtype, index_dtype, strange):
    pooling, shape, sides = case
    choices = STRANGE if strange else np.arange(-3.0, 3.0)  # with ties: the first one is taken
    x = np.random.default_rng(0).choice(choices, shape).astype(dtype)
    y, index = loops.max_pool(pooling, index_dtype)(x)
    y_expected, index_expected = plain.max_pool(pooling, index_dtype)(x)
    equal(y, y_expected)
    equal(index, index_expected)
    gy = normal(y.shape, dtype)
    gy[gy > 1] = np.inf  # where it is not wanted, it must not become NaN
    gradient = loops.max_pool_gradient(pooling)(gy, index, *sides)
    close(gradient, plain.max_pool_gradient(pooling)(gy, index, *sides))


@settings(max_examples=80, deadline=None)
@given(poolings(), dtypes, st.booleans())
def test_avg_pool(case, dtype, count_padding):
    pooling, shape, sides = case
    x = normal(shape, dtype)
    y = loops.avg_pool(pooling, count_padding)(x)
    close(y, plain.avg_pool(pooling, count_padding)(x))
    gy = normal(y.shape, dtype, 1)
    gradient = loops.avg_pool_gradient(pooling, count_padding)(gy, *sides)
    close(gradient, plain.avg_pool_gradient(pooling, count_padding)(gy, *sides))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n_images", "channels", "height"), [(2, 5, 7), (3, 64, 1), (0, 4, 2), (1, 3, 100)])
def test_global_avg_pool(layout, dtype, n_images, channels, height):
    x = normal(ordered(layout, n_images, channels, height, 7), dtype) + 100
    x = x.astype(dtype)
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    expected = x.mean(axes, dtype="float64")
    y = loops.global_avg_pool(layout)(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected, {"float32": 1e-6, "float64": 1e-14}[dtype])
    place = np.empty_like(y)
    assert loops.global_avg_pool(layout)(np.asfortranarray(x), out=place) is place
    equal(place, y)
    with pytest.raises(ValueError, match="images of 0 x 3 pixels have no mean"):
        loops.global_avg_pool(layout)(np.ones(ordered(layout, 1, 2, 0, 3), dtype))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_results_go_where_they_are_wanted(layout):
    pooling = Pooling(Window((3, 2), (2, 1), ((1, 0), (0, 1))), layout)
    x = normal(ordered(layout, 2, 5, 9, 8), "float32")
    other = np.asfortranarray(x)
    y, index = loops.max_pool(pooling, "uint8")(x)
    wanted = np.full_like(y, np.nan), np.full_like(index, 255)
    results = loops.max_pool(pooling, "uint8")(other, out=wanted)
    for value, place, expected in zip(results, wanted, (y, index), strict=True):
        assert value is place
        equal(value, expected)
    place = np.full_like(x, np.nan)
    runs = [
        (loops.max_pool_gradient(pooling), (y, index, 9, 8)),
        (loops.avg_pool_gradient(pooling, False), (y, np.int64(9), np.int64(8))),
    ]
    for run, inputs in runs:
        assert run(*inputs, out=place) is place
        equal(run(np.asfortranarray(y), *inputs[1:]), place)
    mean = np.full_like(y, np.nan)
    assert loops.avg_pool(pooling, True)(other, out=mean) is mean
    equal(mean, loops.avg_pool(pooling, True)(x))


def test_a_gradient_of_another_shape_is_refused():
    pooling = Pooling(Window((2, 2), (2, 2)), "NHWC")
    gy, index = np.ones((1, 3, 3, 2), "float32"), np.zeros((1, 3, 3, 2), "uint8")
    with pytest.raises(ValueError, match=r"shape \(1, 3, 3, 2\); pooling gives \(1, 4, 4, 2\)"):
        loops.max_pool_gradient(pooling)(gy, index, 8, 8)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 3, 2\); pooling gives \(1, 3, 3, 2\)"):
        loops.max_pool_gradient(pooling)(gy, index[:, :2], 6, 6)
    with pytest.raises(ValueError, match="pooling gives"):
        loops.avg_pool_gradient(pooling, True)(gy, 8, 8)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_places_of_large_windows(layout):
    pooling = Pooling(Window((16, 17)), layout)
    x = np.zeros(ordered(layout, 1, 2, 18, 18), "float32")
    x[0, -1, -1, -1] = 1
    for value, expected in zip(
        loops.max_pool(pooling, "int32")(x), plain.max_pool(pooling, "int32")(x), strict=True
    ):
        equal(value, expected)
    assert loops.max_pool(pooling, "int32")(x)[1].max() == 16 * 17 - 1
