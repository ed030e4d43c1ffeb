"""Batch norm against its definition in float64: loops in C, kernels in CUDA on an emulator, and the
NumPy version that stands in for both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import norms as cases
from support.cases.norms import EPS, close
from support.slow import slow

every = pytest.mark.parametrize("provider", cases.EVERY)
loops_only = pytest.mark.parametrize("provider", cases.PROVIDERS[1:])


@every
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99), cases.shapes, cases.layouts, cases.dtypes, st.booleans())
def test_forward_and_backward(provider, seed, shape, layout, dtype, relu):
    gy, x, gamma, beta = cases.batch(seed, shape, layout, dtype)
    results = provider.batch_norm(EPS, relu, layout)(x, gamma, beta)
    # Of one or two numbers the variance may be next to nothing, and inv_std as large as 300.
    scale = float(np.max(results[2])) ** 2
    for value, expected in zip(results, cases.batch_norm(x, gamma, beta, relu, layout), strict=True):
        assert value.dtype == dtype
        close(value, expected, scale)
    inputs = gy, x, gamma, beta, *results[1:]
    gradients = provider.batch_norm_gradient(relu, layout)(*inputs)
    n = x.size / len(gamma)
    for value, expected in zip(gradients, cases.batch_norm_gradient(*inputs, relu, layout), strict=True):
        assert value.dtype == dtype
        close(value, expected, scale * np.sqrt(n))


@every
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["far away", "first is an outlier", "one is an outlier", "in steps"])
def test_statistics_are_exact_wherever_the_numbers_lie(provider, layout, dtype, case):
    _, x, gamma, beta = cases.batch(3, (4, 3, 40, 3), layout, "float64", 1e4 if case == "far away" else 0)
    if case == "first is an outlier":
        x[0, 0, 0, :] = x[0, :, 0, 0] = 1e5
    if case == "one is an outlier":
        x[2, 1] = -1e5
    if case == "in steps":
        x += 1e3 * np.arange(4)[:, None, None, None]
    x = x.astype(dtype)
    _, mean, inv_std = provider.batch_norm(0.0, False, layout)(x, gamma.astype(dtype), beta.astype(dtype))
    axes, _ = cases.spread(4, layout)
    limit = {"float32": 1e-6, "float64": 3e-13}[dtype]  # means near 1e4 are 2e-12 apart in float64
    wide = x.astype("float64")
    np.testing.assert_allclose(mean, wide.mean(axes), rtol=limit, atol=limit * wide.std(axes).min())
    np.testing.assert_allclose(inv_std, 1 / wide.std(axes), rtol=limit)


@every
def test_large_numbers_normalise(provider):
    _, x, gamma, beta = cases.batch(0, (2000, 5), "NHWC", "float32", 1e4)
    y, *_ = provider.batch_norm(EPS, False, "NHWC")(x, gamma, beta)
    expected, *_ = cases.batch_norm(x, gamma, beta, False, "NHWC")
    # The mean is a float32 near 1e4, of which neighbours are 1e-3 apart.
    assert np.abs(y - expected).max() < 3e-3


@every
@pytest.mark.parametrize("shape", [(3000, 5), (40, 5, 20, 30)])
def test_parts_of_a_batch_may_lie_apart(provider, shape):
    """So many rows that parts of them are summed up apart, in CUDA."""
    _, x, gamma, beta = cases.batch(3, shape, "NCHW", "float32", 1e3)
    x += 100 * np.linspace(-3, 3, len(x), dtype="float32").reshape(-1, *[1] * (x.ndim - 1))
    _, mean, inv_std = provider.batch_norm(0.0, False, "NCHW")(x, gamma, beta)
    axes, _ = cases.spread(x.ndim, "NCHW")
    wide = x.astype("float64")
    np.testing.assert_allclose(mean, wide.mean(axes), rtol=1e-6)
    np.testing.assert_allclose(inv_std, 1 / wide.std(axes), rtol=1e-6)


@every
def test_parameters_may_start_anywhere(provider):
    gy, x, *parameters = cases.batch(0, (40, 16), "NHWC", "float32")
    places = np.empty((2, 17), "float32")[:, 1:]  # 4 bytes beyond a multiple of 16, or of 4
    places[:] = parameters
    results = [provider.batch_norm(EPS, True, "NHWC")(x, *given) for given in (parameters, places)]
    results += [
        provider.batch_norm_gradient(True, "NHWC")(gy, x, *given, *results[0][1:])
        for given in (parameters, places)
    ]
    for one, other in ((results[0], results[1]), (results[2], results[3])):
        for value, expected in zip(one, other, strict=True):
            np.testing.assert_array_equal(value, expected)


@every
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_channel(provider, layout, bad):
    _, x, gamma, beta = cases.batch(0, (3, 4, 4, 4), layout, "float32")
    good, *_ = provider.batch_norm(EPS, True, layout)(x, gamma, beta)
    at = (0, 2, 0, 0) if layout == "NCHW" else (0, 0, 0, 2)
    x[at] = bad
    with np.errstate(invalid="ignore"):
        y, mean, inv_std = provider.batch_norm(EPS, True, layout)(x, gamma, beta)
    channels = (slice(None), 2) if layout == "NCHW" else (..., 2)
    assert np.isnan(y[channels]).all()
    assert np.isnan(inv_std).tolist() == [False, False, True, False]
    np.testing.assert_equal(mean[2], np.float32(bad))
    y[channels] = good[channels] = 0
    np.testing.assert_array_equal(y, good)


@every
def test_relu_gives_no_gradient_where_it_is_zero_or_unknown(provider):
    gy = np.array([[np.nan], [np.inf], [1.0]], "float32")
    x = np.array([[-1.0], [0.0], [1.0]], "float32")
    one, zero = np.ones(1, "float32"), np.zeros(1, "float32")
    _, ggamma, gbeta = provider.batch_norm_gradient(True, "NHWC")(gy, x, one, zero, zero, one)
    assert (ggamma, gbeta) == (1, 1)
    x[:] = np.nan
    _, _, gbeta = provider.batch_norm_gradient(True, "NHWC")(gy, x, one, zero, zero, one)
    assert gbeta == 0


@every
@pytest.mark.parametrize(
    ("shape", "n_channels"), [((0, 3), 3), ((0, 5, 5, 3), 3), ((2, 0, 5, 3), 3), ((2, 3, 4, 0), 0)]
)
def test_nothing_has_no_mean(provider, shape, n_channels):
    x, parameters = np.ones(shape, "float32"), np.ones(n_channels, "float32")
    y, mean, inv_std = provider.batch_norm(EPS, True, "NHWC")(x, parameters, parameters)
    assert y.shape == shape
    assert np.isnan(mean).all()
    assert np.isnan(inv_std).all()
    inputs = x, x, parameters, parameters, mean, inv_std
    gx, ggamma, gbeta = provider.batch_norm_gradient(False, "NHWC")(*inputs)
    assert gx.shape == shape
    np.testing.assert_array_equal(gbeta, np.zeros(n_channels))
    assert ggamma.shape == (n_channels,)


@loops_only
def test_a_result_of_another_shape_is_refused(provider):
    _, x, gamma, beta = cases.batch(5, (6, 4), "NHWC", "float32")
    for wrong in (np.empty((4, 6), "float32").T, np.empty((5, 4), "float32"), np.empty((6, 4))):
        with pytest.raises(ValueError, match="pass a C-contiguous array of dtype float32 and shape"):
            provider.batch_norm(EPS, True, "NHWC")(x, gamma, beta, out=(wrong, None, None))


@loops_only
def test_other_dtypes_are_refused(provider):
    x = np.ones((2, 2), "float16")
    with pytest.raises(TypeError, match="float32 and float64, not float16"):
        provider.batch_norm(EPS, False, "NHWC")(x, x[0], x[0])


@pytest.mark.slow
@loops_only
@pytest.mark.parametrize(
    ("layout", "relu"), [("NCHW", True), slow("NHWC", False), slow("NCHW", False), slow("NHWC", True)]
)
def test_results_past_the_caches_are_the_same(provider, layout, relu):
    """NumPy computes the same bits from the statistics of 17 MB, and the loops do so twice."""
    gy, x, gamma, beta = cases.batch(1, (50, 47, 47, 40), layout, "float32")
    _, over = cases.spread(4, layout)
    # Starts that are no line of the cache, as those of an array inside a larger one.
    places = [np.empty(x.size + 3, "float32")[3:].reshape(x.shape) for _ in range(2)]
    y, mean, inv_std = provider.batch_norm(EPS, relu, layout)(x, gamma, beta, out=(places[0], None, None))
    expected = (x - mean[over]) * (gamma * inv_std)[over] + beta[over]
    np.testing.assert_array_equal(y, np.maximum(expected, 0) if relu else expected)
    again = provider.batch_norm(EPS, relu, layout)(x, gamma, beta)
    np.testing.assert_array_equal(y, again[0])
    gradient = provider.batch_norm_gradient(relu, layout)
    results = gradient(gy, x, gamma, beta, mean, inv_std, out=(places[1], None, None))
    for value, second in zip(results, gradient(gy, x, gamma, beta, mean, inv_std), strict=True):
        np.testing.assert_array_equal(value, second)
    for value, expected in zip(
        results, cases.batch_norm_gradient(gy, x, gamma, beta, mean, inv_std, relu, layout), strict=True
    ):
        close(value, expected, np.sqrt(x.size / 40))
