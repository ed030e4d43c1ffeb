"""Layer norm against its definition in float64: loops in C, kernels in CUDA on an emulator, and the
NumPy version that stands in for both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import norms as cases
from support.cases.norms import EPS, close
from support.cuda.provider import OnHost

every = pytest.mark.parametrize("provider", cases.EVERY)


def rows(seed, lead, last, dtype, offset=0.0):
    """Return gy, x, gamma and beta."""
    random = np.random.default_rng(seed)
    arrays = [random.normal(size=n) for n in (lead + last, lead + last, last, last)]
    arrays[1] += offset
    return [array.astype(dtype) for array in arrays]


@every
@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 99),
    st.lists(st.integers(1, 70), max_size=2).map(tuple),
    st.lists(st.sampled_from([1, 2, 5, 63, 64, 65, 130]), min_size=1, max_size=2).map(tuple),
    cases.dtypes,
)
def test_forward_and_backward(provider, seed, lead, last, dtype):
    if isinstance(provider, OnHost):  # an emulator takes its time
        lead, last = lead[:1], last[:1]
    lead = (*lead[:1], *(min(n, 5) for n in lead[1:]))  # one long axis is enough: both may be of GB
    gy, x, gamma, beta = rows(seed, lead, last, dtype)
    results = provider.layer_norm(EPS, len(last))(x, gamma, beta)
    scale = float(np.max(results[2])) ** 2
    for value, expected in zip(map(np.asarray, results), cases.layer_norm(x, gamma, beta), strict=True):
        assert value.dtype == dtype
        close(value, expected, scale)
    inputs = gy, x, gamma, *results[1:]
    gradients = provider.layer_norm_gradient(len(last))(*inputs)
    for value, expected in zip(gradients, cases.layer_norm_gradient(*inputs), strict=True):
        assert value.dtype == dtype
        close(value, expected, scale * np.sqrt(x.size / gamma.size))


@every
@pytest.mark.parametrize("case", ["far away", "first is an outlier"])
def test_statistics_are_exact_wherever_the_numbers_lie(provider, case):
    _, x, gamma, beta = rows(3, (7,), (5000,), "float32", 1e4 if case == "far away" else 0)
    if case == "first is an outlier":
        x[:, 0] = 1e4
    _, mean, inv_std = provider.layer_norm(0.0, 1)(x, gamma, beta)
    wide = x.astype("float64")
    np.testing.assert_allclose(mean, wide.mean(1), rtol=6e-8, atol=1e-6 * wide.std(1).max())
    np.testing.assert_allclose(inv_std, 1 / wide.std(1), rtol=1e-6)


@every
def test_what_is_not_finite_stays_in_its_row(provider):
    _, x, gamma, beta = rows(3, (5,), (70,), "float32")
    good, *_ = provider.layer_norm(EPS, 1)(x, gamma, beta)
    x[1, 5], x[3, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        y, _, inv_std = provider.layer_norm(EPS, 1)(x, gamma, beta)
    assert np.isnan(y).all(1).tolist() == np.isnan(inv_std).tolist() == [False, True, False, True, False]
    np.testing.assert_array_equal(y[[0, 2, 4]], good[[0, 2, 4]])


@every
@pytest.mark.parametrize(("lead", "last"), [((0,), (3,)), ((0, 2), (3,)), ((2,), (0,))])
def test_empty_arrays(provider, lead, last):
    gy, x, gamma, beta = rows(0, lead, last, "float32")
    y, mean, inv_std = provider.layer_norm(EPS, 1)(x, gamma, beta)
    assert (y.shape, mean.shape, inv_std.shape) == (x.shape, lead, lead)
    assert np.isnan(mean).all()
    gx, ggamma, gbeta = provider.layer_norm_gradient(1)(gy, x, gamma, mean, inv_std)
    assert gx.shape == x.shape
    np.testing.assert_array_equal(ggamma, np.zeros(last))
    np.testing.assert_array_equal(gbeta, np.zeros(last))
