import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.reductions import COMPLEX, DTYPES, LEGAL, combine
from support.slow import slow
from synk.values import reduction
from synk.values.accumulator import Accumulator, PartialResult
from synk.values.messages import Results
from synk.values.operations import OPERATIONS

LEGAL_MODES = [*LEGAL, *(("gather", dtype) for dtype in DTYPES)]
# `make test` leaves other widths of a kind to `make test-all`.
USUAL = ("float16", "float32", "int64", "uint8", "complex64", "bool")
LEGAL_USUAL = [(mode, dtype) if dtype in USUAL else slow(mode, dtype) for mode, dtype in LEGAL_MODES]
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For each rank the lengths of its slices, in rows; a rank without any is one without rows.
partitions = st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=5).filter(any)


def rows_like(dtype, shape, seed):
    """Return rows whose sums and products are exact in ``dtype``, whatever their order."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.8
    values = rng.choice([-1, 1, 2, 1, -1, 1] if dtype[0] != "u" else [1, 2, 1, 3], shape).astype(dtype)
    return values * np.array(1j, dtype) if dtype in COMPLEX else values


def in_one_process(mode, rows):
    """Compute what one process would over all ``rows``, in their own dtype."""
    if mode == "gather":
        return rows
    if mode == "avg":
        return rows.mean(0, dtype=np.result_type(rows.dtype, "float64")).astype(rows.dtype)
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[mode]
    return np.asarray(functools.reduce(ufunc, rows), rows.dtype)


def over_ranks(mode, rows, partition):
    """Compute slice by slice and rank by rank, as the ranks of a run do."""
    start, partials = 0, []
    for lengths in partition:
        accumulator = Accumulator(mode)
        for length in lengths:
            part = rows[start : start + length]
            accumulator.add(in_one_process(mode, part), length)
            start += length
        partials.append(accumulator.partial())
    return combine(mode, partials, dtype=rows.dtype)


@pytest.mark.parametrize(("mode", "dtype"), LEGAL_USUAL)
@settings(unhurried, max_examples=12)
@given(partitions, st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 2**32 - 1))
def test_any_partition_gives_the_result_of_one_process(mode, dtype, partition, shape, seed):
    rows = rows_like(dtype, (sum(map(sum, partition)), *shape), seed)
    result, expected = over_ranks(mode, rows, partition), in_one_process(mode, rows)
    assert result.dtype == rows.dtype
    assert result.shape == expected.shape
    if mode == "avg":
        tolerance = 4 * np.finfo(rows.dtype).eps
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("mode", "dtype"), LEGAL_USUAL)
def test_one_part_comes_back_bit_for_bit(mode, dtype):
    value = (np.random.default_rng(1).normal(size=(6,)) / 3).astype(dtype)
    if value.dtype.kind == "f":
        value[:3] = [np.nan, -0.0, np.finfo(dtype).max]
    for weight in (1, 3, 10_000_019):
        accumulator = Accumulator(mode)
        accumulator.add(value, weight)
        partial = accumulator.partial()
        assert partial.weight == weight
        assert partial.value.tobytes() == value.tobytes()
        result = combine(mode, [None, partial, None], dtype=dtype)
        assert result.dtype == value.dtype
        assert result.tobytes() == value.tobytes()


def test_float16_is_rounded_once_for_all_slices_and_ranks():
    parts = [Accumulator("sum") for _ in range(2)]
    for part in parts:
        part.add(np.array([2048.0], "float16"), 1)
        part.add(np.array([0.75], "float16"), 1)
    assert combine("sum", [part.partial() for part in parts], "float16").tolist() == [4096.0]
    assert combine("sum", [part.partial() for part in parts]).tolist() == [4097.5]


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_is_not_finite_stays_so(op):
    ranks = [
        PartialResult(np.array([1.0, np.inf, np.nan, 2.0]), 2),
        PartialResult(np.array([np.nan, 2.0, 3.0, 4.0]), 3),
    ]
    result = combine(op, ranks)
    assert np.isnan(result).tolist() == [True, False, True, False]
    assert result[1] == (2.0 if op == "min" else np.inf)


@pytest.mark.parametrize("op", OPERATIONS)
def test_shapes_are_not_broadcast(op):
    """Two rows and one: NumPy would add the one to both."""
    with pytest.raises(ValueError, match=r'shapes \(2,\) and \(1,\); one value for each row takes "gather"'):
        combine(op, [PartialResult(np.ones(2), 2), PartialResult(np.ones(1), 1)])


def test_gathered_rows_are_put_back_on_the_axis_they_belong_to():
    parts = [np.arange(6.0).reshape(2, 3), np.arange(6.0, 9.0).reshape(1, 3)]
    results = [Results([part], len(part)) for part in parts]
    (joined,) = reduction.combine([reduction.Output("gather", "float32", "output 0", axis=1)], results)
    np.testing.assert_array_equal(joined, np.concatenate(parts).T)
    assert joined.dtype == "float32"
