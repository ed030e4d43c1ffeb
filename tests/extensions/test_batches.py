import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synk.extensions import batches

ROWS = st.integers(0, 200)
SIZES = st.integers(1, 60)
SEEDS = st.one_of(st.integers(0, 2**64), st.tuples(st.integers(0, 99), st.integers(0, 99)), st.none())


@given(ROWS, SIZES, SEEDS)
def test_every_row_is_chosen_once(n_rows, batch_size, seed):
    chosen = list(batches(n_rows, batch_size, seed))
    assert sorted(row for batch in chosen for row in batch) == list(range(n_rows))
    assert all(batch.dtype == np.int64 for batch in chosen)
    assert all(len(batch) == batch_size for batch in chosen[:-1])


@given(ROWS, SIZES)
def test_without_shuffling_slices_follow_each_other(n_rows, batch_size):
    rows = list(range(n_rows))
    chosen = list(batches(n_rows, batch_size, shuffle=False))
    assert all(isinstance(batch, slice) for batch in chosen)
    assert [row for batch in chosen for row in rows[batch]] == rows
    assert all(batch.stop <= n_rows for batch in chosen)


@given(ROWS, SIZES, st.booleans())
def test_drop_last_leaves_whole_batches(n_rows, batch_size, shuffle):
    rows = np.arange(n_rows)
    chosen = [rows[batch] for batch in batches(n_rows, batch_size, 1, shuffle=shuffle, drop_last=True)]
    assert len(chosen) == n_rows // batch_size
    assert all(len(batch) == batch_size for batch in chosen)


@given(st.integers(2, 100), SIZES, SEEDS.filter(lambda seed: seed is not None))
def test_a_seed_gives_one_order(n_rows, batch_size, seed):
    one, other = (np.concatenate(list(batches(n_rows, batch_size, seed))) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_order_does_not_change_between_versions():
    """A seed in a script is a promise; NumPy keeps the streams of its generators."""
    assert [batch.tolist() for batch in batches(5, 2, seed=1)] == [[4, 0], [1, 2], [3]]


def test_epochs_have_orders_of_their_own():
    orders = {tuple(np.concatenate(list(batches(50, 10, seed=(3, epoch))))) for epoch in range(5)}
    assert len(orders) == 5


def test_without_a_seed_every_epoch_differs():
    one, other = (np.concatenate(list(batches(100, 10))) for _ in range(2))
    assert not np.array_equal(one, other)


@given(ROWS, SIZES, st.booleans())
def test_prefetch_tells_each_batch_and_the_next(n_rows, batch_size, shuffle):
    plain = list(batches(n_rows, batch_size, 1, shuffle=shuffle))
    keywords = list(batches(n_rows, batch_size, 1, shuffle=shuffle, prefetch=True))
    assert [set(call) for call in keywords] == [{"batch", "next_batch"}] * len(plain)
    for call, batch, following in zip(keywords, plain, [*plain, None][1:], strict=True):
        np.testing.assert_equal(call, {"batch": batch, "next_batch": following})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n_rows": -1}, ValueError, "n_rows=-1 is less than 0"),
        ({"n_rows": 2.5}, TypeError, "n_rows=2.5 is not an integer"),
        ({"batch_size": 0}, ValueError, "batch_size=0 is less than 1"),
        ({"batch_size": "4"}, TypeError, "batch_size='4' is not an integer"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": (1, -2)}, ValueError, r"seed=\(1, -2\)"),
        ({"seed": 1.5}, TypeError, "seed=1.5"),
        ({"seed": "monday"}, TypeError, "seed='monday'"),
    ],
)
def test_bad_arguments_are_named_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        batches(**{"n_rows": 10, "batch_size": 4, **arguments})
