"""Group norm against its definition in float64: loops in C, and the NumPy version that stands in for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import norms as cases
from support.cases.norms import EPS, close
from support.slow import slow

every = pytest.mark.parametrize("provider", cases.PROVIDERS)


@st.composite
def images(draw):
    """Return the shape of images, a layout and a number of groups."""
    groups, size = draw(st.sampled_from([1, 2, 3, 16])), draw(st.sampled_from([1, 2, 5]))
    sides = draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    layout = draw(cases.layouts)
    n_images, channels = draw(st.integers(1, 3)), groups * size
    return (n_images, channels, *sides) if layout == "NCHW" else (n_images, *sides, channels), layout, groups


@every
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), images(), cases.dtypes, st.booleans())
def test_forward_and_backward(provider, seed, case, dtype, relu):
    shape, layout, groups = case
    gy, x, gamma, beta = cases.batch(seed, shape, layout, dtype)
    results = provider.group_norm(EPS, groups, relu, layout)(x, gamma, beta)
    # Of one or two numbers the variance may be next to nothing, and inv_std as large as 300.
    scale = float(np.max(results[2])) ** 2
    for value, expected in zip(results, cases.group_norm(x, gamma, beta, groups, relu, layout), strict=True):
        assert value.dtype == dtype
        close(value, expected, scale)
    inputs = gy, x, gamma, beta, *results[1:]
    gradients = provider.group_norm_gradient(groups, relu, layout)(*inputs)
    definition = cases.group_norm_gradient(*inputs, groups, relu, layout)
    for value, expected in zip(gradients, definition, strict=True):
        assert value.dtype == dtype
        close(value, expected, scale * np.sqrt(x.size / len(gamma)))


@every
@pytest.mark.parametrize("layout", ["NCHW", slow("NHWC")])
def test_a_channel_without_scale_has_a_gradient(provider, layout):
    """With gamma 0, the gradient comes from the other channels of the group."""
    gy, x, gamma, beta = cases.batch(1, (2, 4, 4, 4), layout, "float64")
    gamma[::2] = 0
    _, *statistics = provider.group_norm(EPS, 2, False, layout)(x, gamma, beta)
    inputs = gy, x, gamma, beta, *statistics
    gx, *_ = provider.group_norm_gradient(2, False, layout)(*inputs)
    np.testing.assert_allclose(gx, cases.group_norm_gradient(*inputs, 2, False, layout)[0], atol=1e-12)


@every
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", ["far away", "one channel far away", "first is an outlier"])
def test_statistics_are_exact_wherever_the_numbers_lie(provider, layout, case):
    shape = (2, 4, 30, 30) if layout == "NCHW" else (2, 30, 30, 4)
    _, x, gamma, beta = cases.batch(3, shape, layout, "float32", 1e4 if case == "far away" else 0)
    split, _ = cases.by_group(2, layout, shape)
    parts = split(x)
    if case == "one channel far away":
        x[(slice(None), 1) if layout == "NCHW" else (..., 1)] += 1e3
    if case == "first is an outlier":
        x[:, 0, 0, 0] = 1e5
    parts = split(x).astype("float64")
    _, mean, inv_std = provider.group_norm(0.0, 2, False, layout)(x, gamma, beta)
    deviation = parts.std((2, 3))
    np.testing.assert_allclose(mean, parts.mean((2, 3)), rtol=6e-8, atol=1e-6 * deviation.max())
    np.testing.assert_allclose(inv_std, 1 / deviation, rtol=1e-6)


@every
def test_what_is_not_finite_stays_in_its_group(provider):
    _, x, gamma, beta = cases.batch(3, (3, 5, 4, 6), "NHWC", "float32")
    good, *_ = provider.group_norm(EPS, 3, True, "NHWC")(x, gamma, beta)
    x[1, 2, 3, 2] = np.nan
    with np.errstate(invalid="ignore"):
        y, *_ = provider.group_norm(EPS, 3, True, "NHWC")(x, gamma, beta)
    assert np.isnan(y[1, ..., 2:4]).all()
    y[1, ..., 2:4] = good[1, ..., 2:4]
    np.testing.assert_array_equal(y, good)


@every
@pytest.mark.parametrize("shape", [(0, 3, 2, 4), (2, 0, 2, 4)])
def test_empty_arrays(provider, shape):
    gy, x, gamma, beta = cases.batch(0, shape, "NHWC", "float32")
    y, mean, inv_std = provider.group_norm(EPS, 2, False, "NHWC")(x, gamma, beta)
    assert (y.shape, mean.shape, inv_std.shape) == (shape, (shape[0], 2), (shape[0], 2))
    assert np.isnan(mean).all()
    gx, *sums = provider.group_norm_gradient(2, False, "NHWC")(gy, x, gamma, beta, mean, inv_std)
    assert gx.shape == shape
    np.testing.assert_array_equal(sums, np.zeros((2, 4)))
