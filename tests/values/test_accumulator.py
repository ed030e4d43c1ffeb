import itertools

import numpy as np
import pytest

from support.reductions import FLOATS, combine
from synk.values.accumulator import Accumulator, PartialResult
from synk.values.operations import MODES, OPERATIONS


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


def test_the_order_is_that_of_slices_and_ranks():
    values = [1e16, 1.0, -1e16, 1.0]  # (1e16 + 1) - 1e16 + 1 is 1 in this order, 2 or 0 in others
    accumulator = Accumulator("sum")
    for value in values:
        accumulator.add(np.array(value), 1)
    assert accumulator.partial().value == 1.0
    assert combine("sum", [PartialResult(np.array(value), 1) for value in values]) == 1.0


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
