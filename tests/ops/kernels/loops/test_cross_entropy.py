"""Cross-entropy against its definition in float64: loops in C, kernels in CUDA on an emulator, and the
NumPy version that stands in for both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cases import norms as cases
from support.cases.norms import close

every = pytest.mark.parametrize("provider", cases.EVERY)


def rows(seed, n_rows, n_columns, dtype, offset=0.0, spread=5.0):
    """Return g, logits and labels."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n_rows, n_columns)) * spread + offset
    labels = random.integers(0, n_columns, n_rows)
    return random.normal(size=n_rows).astype(dtype), logits.astype(dtype), labels


@every
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(1, 40),
    st.sampled_from([1, 2, 10, 63, 64, 65, 1000]),
    cases.dtypes,
    st.sampled_from([0.0, 1e4, -1e4]),
    st.sampled_from(["int64", "int32", "uint8"]),
)
def test_forward_and_backward(provider, seed, n_rows, n_columns, dtype, offset, integer):
    g, logits, labels = rows(seed, n_rows, min(n_columns, 256), dtype, offset)
    labels = labels.astype(integer)
    losses, log_sum = provider.softmax_cross_entropy()(logits, labels)
    expected = cases.cross_entropy(logits, labels)
    assert losses.dtype == log_sum.dtype == dtype
    close(losses, expected[0], 10)  # not 1e4: a loss is as exact far from zero
    close(log_sum, expected[1])
    glogits = provider.softmax_cross_entropy_gradient()(g, logits, labels, log_sum)
    assert glogits.dtype == dtype
    close(glogits, cases.cross_entropy_gradient(g, logits, labels), 5)


@every
def test_extreme_logits(provider):
    inf = np.inf
    logits = np.array([[0, 1e30], [-1e30, 0], [-inf, 0], [-inf, -inf], [np.nan, 0], [inf, 0]], "float32")
    labels = np.array([1, 0, 1, 0, 1, 1])
    losses, log_sum = provider.softmax_cross_entropy()(logits, labels)
    np.testing.assert_array_equal(losses, np.array([0, 1e30, 0, np.nan, np.nan, inf], "float32"))
    np.testing.assert_array_equal(log_sum, np.array([1e30, 0, 0, -inf, np.nan, inf], "float32"))
    glogits = provider.softmax_cross_entropy_gradient()(
        np.ones(3, "float32"), logits[:3], labels[:3], log_sum[:3]
    )
    np.testing.assert_array_equal(glogits, [[0, 0], [-1, 1], [0, 0]])


@pytest.mark.parametrize("provider", cases.PROVIDERS)
@pytest.mark.parametrize("label", [-1, 3, 2**40])
def test_a_label_that_is_no_column_is_named(provider, label):
    g, logits, labels = rows(0, 5, 3, "float32")
    labels[3] = label
    with pytest.raises(IndexError, match=f"label {label} in row 3 is no class: logits have 3 columns"):
        provider.softmax_cross_entropy()(logits, labels)
    with pytest.raises(IndexError, match=f"label {label} in row 3"):
        provider.softmax_cross_entropy_gradient()(g, logits, labels, g)


@every
@pytest.mark.parametrize("n_columns", [0, 4])
def test_no_rows(provider, n_columns):
    g, logits, labels = np.empty(0, "float32"), np.empty((0, n_columns), "float32"), np.empty(0, "int64")
    losses, log_sum = provider.softmax_cross_entropy()(logits, labels)
    assert losses.shape == log_sum.shape == (0,)
    assert provider.softmax_cross_entropy_gradient()(g, logits, labels, log_sum).shape == (0, n_columns)


@pytest.mark.parametrize("provider", cases.PROVIDERS[1:])
def test_another_number_of_labels_is_refused(provider):
    _, logits, labels = rows(0, 5, 3, "float32")
    with pytest.raises(ValueError, match=r"5 rows; an array by row has shape \(4,\)"):
        provider.softmax_cross_entropy()(logits, labels[:4])
