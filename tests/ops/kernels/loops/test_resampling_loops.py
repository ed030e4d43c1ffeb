"""Changes of size against a definition by loops: in C, and the NumPy version that stands in for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases.images import normal
from support.cases.norms import dtypes, layouts
from synk.ops.kernels.loops import LoopKernels
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.resampling import Resampling
from synk.ops.kernels.window import ordered

every = pytest.mark.parametrize("kind", [PlainPool, LoopKernels], ids=["numpy", "loops"])
TOLERANCE = {"float32": 1e-6, "float64": 1e-14}


@st.composite
def resamplings(draw):
    """Return a change of size and the shape of images for it."""
    sides = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    mode = draw(st.sampled_from(["nearest", "bilinear"]))
    corners = mode == "bilinear" and draw(st.booleans())
    if draw(st.booleans()):
        size, scale = draw(st.tuples(st.integers(1, 20), st.integers(1, 20))), None
    else:
        size, scale = None, draw(st.tuples(*[st.sampled_from([1.0, 1.5, 2.0, 2.25, 3.0])] * 2))
    resampling = Resampling(size, scale, mode, corners, draw(layouts))
    return resampling, ordered(resampling.layout, draw(st.integers(0, 2)), draw(st.integers(1, 5)), *sides)


def matrix(resampling, direction, length):
    """Return the weights of the image's pixels in each pixel of the result, one by one, by the formula."""
    outputs = resampling.side(direction, length)
    step = length / outputs if resampling.size or outputs == length else 1 / resampling.scale[direction]
    weights = np.zeros((outputs, length))
    for i in range(outputs):
        if resampling.mode == "nearest":
            weights[i, min(int(np.float32(i) * np.float32(step)), length - 1)] = 1
            continue
        at = (i + 0.5) * step - 0.5
        if resampling.align_corners:
            at = i * (length - 1) / (outputs - 1) if outputs > 1 else 0
        for k in range(length):  # a hat over each pixel, cut at the edges of the image
            weights[i, k] = max(0, 1 - abs(min(max(at, 0), length - 1) - k))
    return weights


@every
@settings(max_examples=60, deadline=None)
@given(resamplings(), dtypes)
def test_forward_and_backward(kind, case, dtype):
    resampling, shape = case
    provider = kind(np)
    x = normal(shape, 0, dtype)
    y = provider.resample(resampling)(x)
    sides = shape[2:] if resampling.layout == "NCHW" else shape[1:3]
    down, across = (matrix(resampling, k, n) for k, n in enumerate(sides))
    axes = "nchw,ih,jw->ncij" if resampling.layout == "NCHW" else "nhwc,ih,jw->nijc"
    expected = np.einsum(axes, x.astype("float64"), down, across)
    assert (y.shape, y.dtype) == (expected.shape, dtype)
    np.testing.assert_allclose(y, expected, rtol=0, atol=TOLERANCE[dtype] * 10)
    gy = normal(y.shape, 1, dtype)
    gx = provider.resample_gradient(resampling)(gy, *sides)
    back = "ncij,ih,jw->nchw" if resampling.layout == "NCHW" else "nijc,ih,jw->nhwc"
    expected = np.einsum(back, gy.astype("float64"), down, across)
    assert gx.dtype == dtype
    np.testing.assert_allclose(
        gx, expected, rtol=0, atol=TOLERANCE[dtype] * (10 + 10 * np.abs(expected).max(initial=0))
    )


@every
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_results_go_where_they_are_wanted_from_wherever_inputs_are(kind, layout, mode):
    resampling, provider = Resampling((4, 6), None, mode, layout=layout), kind(np)
    x, sides = normal((2, 3, 4, 5)), ((4, 5) if layout == "NCHW" else (3, 4))
    for run, inputs in (
        (provider.resample(resampling), (x,)),
        (provider.resample_gradient(resampling), (provider.resample(resampling)(x), *sides)),
    ):
        expected = run(*inputs)
        wanted = np.full_like(expected, 77)
        assert run(*inputs, out=wanted) is wanted
        np.testing.assert_array_equal(wanted, expected)
        np.testing.assert_array_equal(run(np.asfortranarray(inputs[0]), *inputs[1:]), expected)


@every
def test_what_is_not_finite_stays_where_it_is(kind):
    x = normal((1, 2, 4, 4))
    x[0, 0, 1, 1] = np.nan
    resampling = Resampling(None, (2.0, 2.0))
    y = kind(np).resample(resampling)(x)
    assert np.isnan(y).sum() == 4
    gx = kind(np).resample_gradient(resampling)(y, 4, 4)
    assert np.isnan(gx).sum() == 1


@every
def test_results_larger_than_the_caches_have_the_same_numbers(kind):
    """Above 8 MiB the loops write past the caches."""
    x, resampling = normal((3, 64, 96, 8)), Resampling(None, (3.0, 3.0), "bilinear", layout="NHWC")
    provider = kind(np)
    y = provider.resample(resampling)(x)
    assert y.nbytes > 8 << 20
    for k in range(3):
        np.testing.assert_array_equal(y[k], provider.resample(resampling)(x[k : k + 1])[0])
    nearest = Resampling(None, (3.0, 3.0), layout="NHWC")
    expected = x.repeat(3, 1).repeat(3, 2)
    np.testing.assert_array_equal(provider.resample(nearest)(x), expected)
