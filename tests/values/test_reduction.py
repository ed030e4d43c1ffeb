import functools
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.slow import slow
from synk.values import reduction
from synk.values.messages import Results
from synk.values.reduction import (
    MODES,
    OPERATIONS,
    Accumulator,
    PartialResult,
    accumulating_dtype,
    check_mode,
    check_operation,
    identity,
)

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = [*FLOATS, *INTEGERS, *COMPLEX, "bool"]

LEGAL = [
    *((op, dtype) for dtype in FLOATS for op in OPERATIONS),
    *((op, dtype) for dtype in INTEGERS for op in ("sum", "prod", "min", "max")),
    *((op, dtype) for dtype in COMPLEX for op in ("avg", "sum", "prod")),
    *((op, "bool") for op in ("prod", "min", "max")),
]
LEGAL_MODES = [*LEGAL, *(("gather", dtype) for dtype in DTYPES)]
# `make test` leaves other widths of a kind to `make test-all`.
USUAL = ("float16", "float32", "int64", "uint8", "complex64", "bool")
LEGAL_USUAL = [(mode, dtype) if dtype in USUAL else slow(mode, dtype) for mode, dtype in LEGAL_MODES]
ILLEGAL = [(op, dtype) for dtype in DTYPES for op in OPERATIONS if (op, dtype) not in LEGAL]


def combine(mode, partials, dtype=None):
    """Return one output of ranks with these partial results."""
    of_ranks = [None if part is None else Results([part.value], part.weight) for part in partials]
    return reduction.combine([reduction.Output(mode, dtype, "output 0")], of_ranks)[0]


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


def test_a_single_value_is_not_copied():
    value = np.ones(3)
    for mode in (*OPERATIONS, None):
        accumulator = Accumulator(mode)
        accumulator.add(value, 2)
        assert accumulator.partial().value is value


@pytest.mark.parametrize("shape", [(), (4,)])
@pytest.mark.parametrize("mode", [*OPERATIONS, "gather"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_added_is_not_written_to(mode, dtype, shape):
    values = [np.full(shape, number, dtype) for number in (1, 2, 3)]
    before = [value.copy() for value in values]
    for value in values:
        value.setflags(write=False)
    accumulator = Accumulator(mode)
    for value in values:
        accumulator.add(value, 2)
        accumulator.partial()
    combine(mode, [PartialResult(value, 2) for value in values])
    for value, kept in zip(values, before, strict=True):
        assert value.tobytes() == kept.tobytes()


@pytest.mark.parametrize("mode", [*OPERATIONS, "gather"])
def test_a_partial_may_be_asked_for_in_between(mode):
    asked, other = Accumulator(mode), Accumulator(mode)
    for value, weight in [(1.5, 2), (2.5, 3), (4.25, 1)]:
        asked.add(np.full(2, value), weight)
        other.add(np.full(2, value), weight)
        asked.partial()
    assert asked.partial().value.tolist() == other.partial().value.tolist()
    assert asked.partial().weight == other.partial().weight == 6


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_float16_accumulates_in_float32(op):
    one = np.array([1.0], "float16")
    accumulator = Accumulator(op)
    for _ in range(3000):  # float16 counts to 2048
        accumulator.add(one, 1)
    assert accumulator.partial().value.tolist() == [3000.0 if op == "sum" else 1.0]
    ranks = [PartialResult(np.array([2048.0], "float16"), 2048), PartialResult(one, 1), PartialResult(one, 1)]
    result = combine(op, ranks, dtype="float16")
    assert result.dtype == np.float16
    assert result.tolist() == [2050.0] if op == "sum" else [np.float16((2048.0**2 + 2) / 2050)]


def test_float16_is_rounded_once_for_all_slices_and_ranks():
    parts = [Accumulator("sum") for _ in range(2)]
    for part in parts:
        part.add(np.array([2048.0], "float16"), 1)
        part.add(np.array([0.75], "float16"), 1)
    assert combine("sum", [part.partial() for part in parts], "float16").tolist() == [4096.0]
    assert combine("sum", [part.partial() for part in parts]).tolist() == [4097.5]


def test_accumulating_dtypes():
    assert accumulating_dtype("float16") == np.float32
    for dtype in set(DTYPES) - {"float16"}:
        assert accumulating_dtype(dtype) == np.dtype(dtype)


def test_the_order_is_that_of_slices_and_ranks():
    values = [1e16, 1.0, -1e16, 1.0]  # (1e16 + 1) - 1e16 + 1 is 1 in this order, 2 or 0 in others
    accumulator = Accumulator("sum")
    for value in values:
        accumulator.add(np.array(value), 1)
    assert accumulator.partial().value == 1.0
    assert combine("sum", [PartialResult(np.array(value), 1) for value in values]) == 1.0


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_is_not_finite_stays_so(op):
    ranks = [
        PartialResult(np.array([1.0, np.inf, np.nan, 2.0]), 2),
        PartialResult(np.array([np.nan, 2.0, 3.0, 4.0]), 3),
    ]
    result = combine(op, ranks)
    assert np.isnan(result).tolist() == [True, False, True, False]
    assert result[1] == (2.0 if op == "min" else np.inf)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (5,)])
def test_averages_do_not_overflow(dtype, shape):
    largest = np.finfo(dtype).max
    for signs in ([1, 1, 1, 1], [1, 1, -1, -1], [-1, -1, -1, 1], [0, 1, 1, 1]):
        parts = [Accumulator("avg"), Accumulator("avg")]
        for number, sign in enumerate(signs):
            parts[number // 2].add(np.full(shape, sign * largest, dtype), 100 + number)
        result = combine("avg", [part.partial() for part in parts], dtype)
        share = sum(sign * (100 + number) for number, sign in enumerate(signs)) / 406
        assert result.dtype == dtype
        shares = np.real(result).astype("float64") / float(largest)
        np.testing.assert_allclose(shares, np.full(shape, share), rtol=0, atol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mean_is_no_larger_than_what_it_is_of(dtype):
    largest = np.finfo(dtype).max
    for weights in itertools.product(range(1, 12), repeat=3):
        accumulator = Accumulator("avg")
        for weight in weights:
            accumulator.add(np.array([largest, -largest]), weight)
        assert accumulator.partial().value.tolist() == [largest, -largest], weights


def test_an_overflow_leaves_other_elements_as_they_are():
    rows = np.random.default_rng(0).normal(size=(6, 9)).astype("float32")
    plain, other = Accumulator("avg"), Accumulator("avg")
    for number, row in enumerate(rows):
        plain.add(row, 3 + number)
        beside = row.copy()
        beside[4] = np.finfo("float32").max if number else 0
        other.add(beside, 3 + number)
        assert np.isfinite(other.partial().value).all()
    one, two = plain.partial().value, other.partial().value
    assert np.delete(one, 4).tobytes() == np.delete(two, 4).tobytes()
    assert two[4] == pytest.approx(float(np.finfo("float32").max) * 30 / 33, rel=1e-6)


@pytest.mark.parametrize("other", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_mended(other):
    accumulator = Accumulator("avg")
    largest = np.finfo("float64").max
    for value in ([largest, largest], [largest, other], [largest, 1.0]):
        accumulator.add(np.array(value), 7)
    mean = accumulator.partial().value
    assert mean[0] == largest
    np.testing.assert_equal(mean[1], other)


def test_gather_counts_a_number_as_one_row():
    accumulator = Accumulator("gather")
    accumulator.add(np.array(1.5), 4)
    accumulator.add(np.array(2.5), 4)
    assert combine("gather", [accumulator.partial(), PartialResult(np.array(3.5), 1)]).tolist() == [
        1.5,
        2.5,
        3.5,
    ]
    assert combine("gather", [PartialResult(np.array(3.5), 1)]).tolist() == [3.5]


def test_none_is_the_last_slice_of_the_first_rank_with_rows():
    accumulator = Accumulator(None)
    for value in ("one", "two", "three"):
        accumulator.add(value, 2)
    assert accumulator.partial() == ("three", 2)
    assert combine(None, [None, accumulator.partial(), PartialResult("other", 1)]) == "three"


@pytest.mark.parametrize("mode", MODES)
def test_nothing_added_is_no_result(mode):
    assert Accumulator(mode).partial() is None


@pytest.mark.parametrize(("op", "dtype"), [case for case in LEGAL if case[0] != "avg"])
def test_identity_changes_nothing(op, dtype):
    values = (np.random.default_rng(2).normal(size=(3, 4)) * 4).astype(dtype)
    nothing = identity(op, values)
    assert nothing.dtype == values.dtype
    assert nothing.shape == values.shape
    np.testing.assert_array_equal(combine(op, [PartialResult(nothing, 0), PartialResult(values, 1)]), values)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_identity_of_extremes_leaves_extremes(dtype):
    if dtype in FLOATS:
        extremes = np.array([-np.inf, np.inf], dtype)
    elif dtype == "bool":
        extremes = np.array([False, True])
    else:
        extremes = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    np.testing.assert_array_equal(np.minimum(identity("min", extremes), extremes), extremes)
    np.testing.assert_array_equal(np.maximum(identity("max", extremes), extremes), extremes)


def test_other_identities():
    for dtype in DTYPES:
        values = np.ones((3, 2), dtype)
        # No rows leave an average, and the last value, as they were.
        assert identity("avg", values) is None
        assert identity(None, values) is None
        joined = identity("gather", values)
        assert (joined.shape, joined.dtype) == ((0, 2), values.dtype)
        assert np.ndim(identity("sum", np.array(3, dtype))) == 0


def test_what_has_a_meaning_is_allowed():
    for op, dtype in LEGAL:
        assert check_operation(op, dtype, "output 0") == op
        assert check_mode(op, dtype, "output 0") == op
        assert check_mode(f"c_{op}", dtype, "output 0") == op


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_has_no_meaning_is_refused(op):
    for dtype in (dtype for illegal, dtype in ILLEGAL if illegal == op):
        for check in (check_operation, check_mode):
            with pytest.raises(TypeError, match=f'output 0 .*"{op}"'):
                check(op, dtype, "output 0")
        with pytest.raises(TypeError, match=f'output 0 .*"{op}"'):
            check_mode(f"c_{op}", dtype, "output 0")


def test_the_illegal_are_these():
    kinds = {(op, np.dtype(dtype).kind) for op, dtype in ILLEGAL}
    assert kinds == {("avg", "i"), ("avg", "u"), ("avg", "b"), ("sum", "b"), ("min", "c"), ("max", "c")}


def test_gather_and_none_have_a_meaning_for_every_dtype():
    for dtype in DTYPES:
        assert check_mode("gather", dtype, "output 0") == "gather"
        assert check_mode("c_gather", dtype, "output 0") == "gather"
        assert check_mode(None, dtype, "output 0") is None


@pytest.mark.parametrize("op", ["mean", "AVG", "", "gather", None, 3, ["sum"]])
def test_other_operations_are_refused(op):
    with pytest.raises(ValueError, match="is not a reduce operation; use one of avg, sum, prod, min, max"):
        check_operation(op, "float32", "variable 'w'")


@pytest.mark.parametrize("mode", ["mean", "c_", "c_None", "c_c_sum", "", 3, ["sum"]])
def test_other_modes_are_refused_with_their_name(mode):
    with pytest.raises(ValueError, match="output 2; use one of 'avg', .*'gather', None") as caught:
        check_mode(mode, "float32", "output 2")
    assert repr(mode) in str(caught.value)


def test_only_arrays_can_be_reduced():
    assert check_mode(None, None, "update of the generator") is None
    for mode in ("sum", "gather", "c_avg"):
        with pytest.raises(TypeError, match=f"update of the generator is not an array.*'{mode}'; use None"):
            check_mode(mode, None, "update of the generator")


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
