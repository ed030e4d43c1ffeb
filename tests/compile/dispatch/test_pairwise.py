import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synk.compile.dispatch.pairwise import sum_float32

ROUNDING = 2.0**-24


@st.composite
def arrays_and_axes(draw):
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 27, 50, 130]), min_size=1, max_size=3))
    axes = draw(st.sets(st.integers(0, len(shape) - 1)))
    return shape, sorted(axes), draw(st.sampled_from("CF"))


@settings(max_examples=60, deadline=None)
@given(arrays_and_axes())
def test_any_axes_of_any_shape(case):
    shape, axes, order = case
    x = np.asarray(np.random.default_rng(0).random(shape, dtype="float32"), order=order)
    expected = x.sum(axis=tuple(axes), dtype="float64")
    result = np.asarray(sum_float32(x, axes))
    assert result.shape == expected.shape
    assert not np.shares_memory(result, x)
    np.testing.assert_allclose(result, expected, rtol=6 * ROUNDING, atol=0)


@pytest.mark.parametrize("shape", [(250, 800), (60_000, 10), (10, 60_000), (5003, 7), (100_000, 1)])
def test_error_is_that_of_pairwise_sums(shape):
    x = np.random.default_rng(1).random(shape, dtype="float32")
    exact = x.sum(0, dtype="float64")
    pairwise = np.ascontiguousarray(x.T).sum(1)
    bound = max(2 * ROUNDING, 1.2 * abs(pairwise / exact - 1).max())  # 1.2: another random error of its kind
    assert abs(sum_float32(x, [0]) / exact - 1).max() <= bound


def test_large_terms_that_cancel():
    # One by one in float32, the ones would all be lost.
    x = np.ones((4096, 3), "float32")
    x[0], x[-1] = 2.0**26, -(2.0**26)
    assert abs(sum_float32(x, [0]) - 4094).max() <= 50  # 25 rows share a block with each large term


def test_not_a_number_stays_in_its_column():
    x = np.ones((300, 5), "float32")
    x[7, 1], x[299, 3] = np.nan, np.inf
    np.testing.assert_array_equal(sum_float32(x, [0]), [300, np.nan, 300, np.inf, 300])


def test_the_bits_depend_on_the_values_alone():
    x = np.random.default_rng(2).normal(size=(251, 801)).astype("float32")
    memory = np.empty(x.nbytes + 64, "uint8")
    results = []
    for start in (0, 4, 20, 36):
        moved = memory[start : start + x.nbytes].view("float32").reshape(x.shape)
        moved[...] = x
        results.append(sum_float32(moved, [0]).tobytes())
    assert len(set(results)) == 1


def test_strided_arrays():
    x = np.random.default_rng(3).random((60, 50), dtype="float32")[::2, ::3]
    np.testing.assert_allclose(sum_float32(x, [0]), x.sum(0, dtype="float64"), rtol=1e-12)
