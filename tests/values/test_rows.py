import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synk.values.rows import (
    SelectedRows,
    same_rows,
    select,
    select_common,
    select_each,
    slices,
    split,
)

INTEGERS = [np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">u8")]

# A busy machine is slow, which is no fault of the arithmetic.
unhurried = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

lengths = st.integers(0, 20)
ends = st.none() | st.integers(-25, 25) | st.integers(-25, 25).map(np.int16)
plain_slices = st.builds(slice, ends, ends, st.sampled_from([None, 1]))


@st.composite
def entries(draw, length, lowest=None):
    """Draw row numbers as NumPy takes them: repeated, negative, none at all."""
    if not length:
        return []
    return draw(st.lists(st.integers(-length if lowest is None else lowest, length - 1), max_size=25))


@st.composite
def index_arrays(draw, length):
    dtype = draw(st.sampled_from(INTEGERS))
    array = np.array(draw(entries(length, lowest=0 if dtype.kind == "u" else None)), dtype)
    form = draw(st.sampled_from(["plain", "reversed", "strided", "read-only"]))
    if form == "strided":
        array = np.repeat(array, 2)[::2]
    if form == "read-only":
        array.setflags(write=False)
    return array[::-1] if form == "reversed" else array


@st.composite
def listed(draw, length):
    form = draw(st.sampled_from([list, tuple, "array", "range"]))
    if form == "array":
        return draw(index_arrays(length))
    if form == "range":
        return range(draw(st.integers(0, length)))
    return form(draw(entries(length)))


@st.composite
def batches(draw):
    """Draw a legal selection and the length it is legal for."""
    length = draw(lengths)
    counts = st.integers(0, length) | st.integers(0, length).map(np.uint8)
    return draw(st.none() | counts | plain_slices | listed(length)), length


def by_numpy(batch, array):
    """Select as plain NumPy does."""
    if batch is None:
        return array
    if isinstance(batch, int | np.integer):
        return array[:batch]
    return array[batch] if isinstance(batch, slice) else array[np.array(batch, np.int64)]


def rows_of(length):
    """Return an array of ``length`` distinct rows."""
    return np.arange(100, 100 + 2 * length).reshape(length, 2)


@unhurried
@given(batches())
def test_select_picks_the_rows_that_numpy_picks(case):
    batch, length = case
    expected = by_numpy(batch, rows_of(length))
    rows = select(batch, length)
    np.testing.assert_array_equal(rows.of(rows_of(length)), expected)
    assert len(rows) == len(expected)


@unhurried
@given(batches(), st.integers(1, 6), st.integers(1, 6))
def test_parts_of_parts_join_to_the_selection(case, n_ranks, num_slices):
    batch, length = case
    rows = select(batch, length)
    parts = [
        shard.part(*piece).of(rows_of(length))
        for shard in (rows.part(*ends) for ends in split(len(rows), n_ranks))
        for piece in slices(len(shard), num_slices)
    ]
    joined = np.concatenate([rows_of(length)[:0], *parts])
    np.testing.assert_array_equal(joined, by_numpy(batch, rows_of(length)))


@unhurried
@given(st.data(), st.integers(0, 20))
def test_entries_out_of_range_are_refused_as_numpy_does(data, length):
    legal = data.draw(entries(length))
    bad = data.draw(st.integers(length, length + 9) | st.integers(-length - 9, -length - 1))
    batch = data.draw(st.permutations([*legal, bad]))
    message = rf"batch holds index {bad}, out of range for the {length} rows of the inputs"
    with pytest.raises(IndexError, match=message):
        select(batch, length)
    with pytest.raises(IndexError):
        rows_of(length)[np.array(batch)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_arrays_of_every_integer_dtype(dtype):
    batch = np.array([3, 0, 3], dtype)
    assert select(batch, 4).indices.tolist() == [3, 0, 3]
    with pytest.raises(IndexError, match="batch holds index 3, "):
        select(batch, 3)


def test_negative_entries_of_the_callers_array_stay_as_they_are():
    batch = np.array([-1, 2, -3])
    rows = select(batch, 3)
    assert rows.indices.tolist() == [2, 2, 0]
    assert batch.tolist() == [-1, 2, -3]
    batch[:] = 1
    assert rows.indices.tolist() == [2, 2, 0]


def test_contiguous_rows_are_a_view_and_listed_ones_a_copy():
    array = rows_of(6)
    assert np.shares_memory(select(slice(1, 4), 6).of(array), array)
    assert np.shares_memory(select(3, 6).of(array), array)
    assert not np.shares_memory(select([2, 1], 6).of(array), array)


@pytest.mark.parametrize(
    "batch", [[0], [5], [2, 3, 4], range(6), np.arange(1, 5, dtype="u8"), [-3, -2, -1]], ids=repr
)
def test_a_list_of_a_stretch_in_order_is_a_view(batch):
    array = rows_of(6)
    rows = select(batch, 6)
    assert rows.indices is None
    np.testing.assert_array_equal(rows.of(array), array[list(batch)])
    assert np.shares_memory(rows.of(array), array)


@pytest.mark.parametrize("batch", [[1, 0], [0, 2], [0, 2, 1, 3], [0, 1, 1, 3], [3, 3], [-1, 0]], ids=repr)
def test_other_lists_are_not_taken_for_a_stretch(batch):
    array = rows_of(6)
    rows = select(batch, 6)
    assert rows.indices is not None
    np.testing.assert_array_equal(rows.of(array), array[batch])


def test_unsigned_entries_beyond_the_signed_ones_are_out_of_range():
    with pytest.raises(IndexError, match=f"batch holds index {2**63 + 1}, out of range"):
        select(np.array([0, 2**63 + 1], dtype="u8"), 5)


BAD = [
    (-1, IndexError, "batch=-1 selects a negative number of the 5 rows of the inputs; pass a slice to clip"),
    (6, IndexError, "batch=6 selects more than the 5 rows of the inputs; pass a slice to clip"),
    (np.int8(-2), IndexError, "batch=-2 selects a negative number of the 5 rows of the inputs"),
    (np.uint64(6), IndexError, "batch=6 selects more than the 5 rows of the inputs"),
    ([0, 5], IndexError, "batch holds index 5, out of range for the 5 rows of the inputs"),
    ([0, -6], IndexError, "batch holds index -6, out of range for the 5 rows of the inputs"),
    (True, TypeError, "batch=True is a boolean; pass a number of rows, a slice or indices"),
    (np.False_, TypeError, "batch=False is a boolean"),
    (
        [True, False, True, False, True],
        TypeError,
        "batch is a boolean mask; pass np.flatnonzero(mask) instead",
    ),
    (np.ones(5, bool), TypeError, "batch is a boolean mask"),
    (np.array(True), TypeError, "batch is a boolean mask"),
    (2.0, TypeError, "batch must be an int, a slice or integer row indices, got float 2.0"),
    (np.float32(2), TypeError, "batch must be an int, a slice or integer row indices, got float32 "),
    (float("nan"), TypeError, "got float nan"),
    (1j, TypeError, "got complex 1j"),
    ("3", TypeError, "got str '3'"),
    (b"3", TypeError, "got bytes b'3'"),
    ({1}, TypeError, "got set {1}"),
    ({1: 2}, TypeError, "got dict {1: 2}"),
    (iter([1]), TypeError, "got list_iterator "),
    ([0.0, 1.0], TypeError, "got list of dtype float64"),
    ((0.0, 1.0), TypeError, "got tuple of dtype float64"),
    (np.ones(2, "f4"), TypeError, "got ndarray of dtype float32"),
    ([None, 1], TypeError, "got list of dtype object"),
    (["a"], TypeError, "got list of dtype <U1"),
    ([[0, 1], [2, 3]], ValueError, "batch must be one-dimensional, got 2 dimensions"),
    (np.zeros((0, 3), int), ValueError, "batch must be one-dimensional, got 2 dimensions"),
    (np.array(3), ValueError, "batch must be one-dimensional, got 0 dimensions"),
    ([[0], [1, 2]], ValueError, "batch is ragged; pass a flat list of row indices"),
    (slice(0, 5, 2), ValueError, "batch=slice(0, 5, 2) has step 2; pass a list of indices instead"),
    (slice(None, None, -1), ValueError, "batch=slice(None, None, -1) has step -1"),
    (slice(0, 5, 0), ValueError, "batch=slice(0, 5, 0) has step 0"),
    (slice(0.5, 3), TypeError, "batch=slice(0.5, 3, None) has an end that is not an integer"),
    (slice(0, "3"), TypeError, "batch=slice(0, '3', None) has an end that is not an integer"),
]


IDS = [repr(case[0]).split(" at 0x")[0][:30] for case in BAD]  # the same in each process of tests


@pytest.mark.parametrize(("batch", "error", "message"), BAD, ids=IDS)
def test_what_cannot_be_a_selection_is_refused(batch, error, message):
    with pytest.raises(error, match=re.escape(message)):
        select(batch, 5)


def test_errors_name_argument_and_owner():
    with pytest.raises(IndexError, match="batch_s=9 selects more than the 5 rows of input 'x'"):
        select(9, 5, argument="batch_s", owner="input 'x'")
    with pytest.raises(IndexError, match="batch_s holds index 9, out of range for the 5 rows of input 'x'"):
        select([9], 5, argument="batch_s", owner="input 'x'")
    for bad in (True, [0.5], slice(0, 4, 2), slice(0.5, 1), [[1]], [True]):
        with pytest.raises((TypeError, ValueError), match="^batch_s"):
            select(bad, 5, argument="batch_s")


@pytest.mark.parametrize("empty", [[], (), range(0), np.array([], int), np.array([], "u1"), np.array([])])
@pytest.mark.parametrize("length", [0, 4])
def test_nothing_may_be_selected(empty, length):
    rows = select(empty, length)
    assert len(rows) == 0
    assert rows.of(rows_of(length)).shape == (0, 2)


def test_an_empty_mask_is_a_mask():
    with pytest.raises(TypeError, match="boolean mask"):
        select(np.zeros(0, bool), 5)


@unhurried
@given(st.integers(0, 10_000), st.integers(1, 200))
def test_split_is_array_split(n_rows, n_parts):
    parts = split(n_rows, n_parts)
    expected = np.array_split(np.arange(n_rows), n_parts)
    assert [list(range(*part)) for part in parts] == [part.tolist() for part in expected]
    # Empty parts have a place too: NumPy's do not show it.
    assert [parts[0][0], *(stop for _, stop in parts)] == [*(start for start, _ in parts), n_rows]


@unhurried
@given(st.integers(0, 60), st.integers(1, 100))
def test_slices_cover_all_rows_once_and_none_is_empty(n_rows, num_slices):
    parts = slices(n_rows, num_slices)
    assert [row for part in parts for row in range(*part)] == list(range(n_rows))
    assert all(start < stop for start, stop in parts)
    assert len(parts) == min(n_rows, num_slices)


@unhurried
@given(batches(), st.integers(1, 4))
def test_inputs_of_one_length_have_one_selection(case, n_inputs):
    batch, length = case
    names = [f"x{i}" for i in range(n_inputs)]
    rows = select_common(batch, [length] * n_inputs, names)
    np.testing.assert_array_equal(rows.of(rows_of(length)), by_numpy(batch, rows_of(length)))


@unhurried
@given(st.data(), lengths, lengths)
def test_inputs_of_two_lengths_have_a_selection_only_where_it_means_the_same(data, one, other):
    counts = st.integers(0, min(one, other))
    batch = data.draw(counts | plain_slices | listed(min(one, other)))
    picked = [by_numpy(batch, np.arange(length)) for length in (one, other)]
    if not np.array_equal(*picked):
        with pytest.raises(ValueError, match=f"selects different rows .*'x': {one}, 'y': {other}"):
            select_common(batch, [one, other], ["x", "y"])
    elif len(picked[0]):
        rows = select_common(batch, [one, other], ["x", "y"])
        assert rows.of(np.arange(max(one, other))).tolist() == picked[0].tolist()


def test_no_rows_are_the_same_of_inputs_of_any_length():
    assert len(select_common(slice(10, 20), [5, 7], ["x", "y"])) == 0


def test_inputs_of_two_lengths_need_a_batch():
    message = r"differ in length \('x': 5, 'y': 7\); pass batch"
    with pytest.raises(ValueError, match=message):
        select_common(None, [5, 7], ["x", "y"])


@pytest.mark.parametrize("batch", [6, [0, 5]])
def test_the_input_that_is_too_short_is_named(batch):
    with pytest.raises(IndexError, match="the 5 rows of input 'y'"):
        select_common(batch, [7, 5], ["x", "y"])
    with pytest.raises(IndexError, match="the 5 rows of input 'x'"):
        select_common(batch, [5, 5], ["x", "y"])


def test_the_same_rows():
    assert same_rows(SelectedRows(0, 3), SelectedRows(0, 3))
    assert not same_rows(SelectedRows(0, 3), SelectedRows(1, 3))
    assert same_rows(select([0, -1], 3), select([0, 2], 3))
    assert not same_rows(select([0, -1], 3), select([0, -1], 4))
    assert not same_rows(select([0, 1], 3), select([0, 1, 2], 3))


def test_the_same_rows_listed_and_not():
    assert same_rows(SelectedRows(0, 3), select([0, 1, 2], 5))
    assert not same_rows(SelectedRows(0, 3), select([0, 2, 1], 5))


def test_the_same_rows_of_other_parts_of_one_list():
    rows = select([4, 3, 2, 1], 5)
    assert not same_rows(rows.part(0, 2), rows.part(2, 4))


@unhurried
@given(batches(), st.integers(1, 4))
def test_one_batch_s_is_for_all_ranks(case, n_ranks):
    batch, length = case
    shards = [length + rank for rank in range(n_ranks)]
    picked = select_each(batch, shards)
    assert len(picked) == n_ranks
    for rows, shard in zip(picked, shards, strict=True):
        np.testing.assert_array_equal(rows.of(rows_of(shard)), by_numpy(batch, rows_of(shard)))


@unhurried
@given(st.data(), st.lists(lengths, min_size=1, max_size=4), st.sampled_from([list, tuple]))
def test_a_batch_s_for_each_rank(data, shards, form):
    choices = [data.draw(plain_slices | listed(shard)) for shard in shards]
    picked = select_each(form(choices), shards)
    for rows, choice, shard in zip(picked, choices, shards, strict=True):
        np.testing.assert_array_equal(rows.of(rows_of(shard)), by_numpy(choice, rows_of(shard)))


def test_a_list_of_ints_is_one_selection():
    assert [rows.indices.tolist() for rows in select_each([0, 2], [3, 4])] == [[0, 2], [0, 2]]
    assert [rows.indices.tolist() for rows in select_each([np.array(0), np.array(2)], [3, 4])] == [[0, 2]] * 2


@pytest.mark.parametrize(
    ("batch_s", "error", "message"),
    [
        ([slice(2), slice(2), slice(2)], ValueError, "batch_s has 3 selections for 2 ranks"),
        ([[0, 1]], ValueError, "batch_s has 1 selections for 2 ranks"),
        (5, IndexError, "batch_s=5 selects more than the 4 rows of the sliceable variables of rank 1"),
        (
            [[0], [4]],
            IndexError,
            "batch_s holds index 4, out of range for the 4 rows of the sliceable variables of rank 1",
        ),
        ([slice(2), slice(0, 4, 2)], ValueError, "batch_s=slice(0, 4, 2) has step 2"),
        ([slice(2), 1], TypeError, "batch_s must be an int, a slice or integer row indices"),
        (np.zeros((2, 2), int), ValueError, "batch_s must be one-dimensional, got 2 dimensions"),
        (True, TypeError, "batch_s=True is a boolean"),
        ([[True, False], [True, False]], TypeError, "batch_s is a boolean mask"),
    ],
)
def test_a_bad_batch_s_is_refused(batch_s, error, message):
    with pytest.raises(error, match=re.escape(message)):
        select_each(batch_s, [6, 4])
