"""Shared variables as the script sees them while a run has them, and in the run after it."""

import contextlib
import copy
import pickle

import numpy as np
import pytensor
import pytest

import synk
from support.cases.containers import is_plain
from support.slow import slow
from synk.extensions import checkpoint


@pytest.mark.parametrize(
    "make", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))], ids=["copy", "pickle"]
)
def test_copies_are_plain_variables(ranks, make):
    ranks(2, device="cpu")
    v = pytensor.shared(np.arange(3.0), name="v")
    synk.broadcast(v)
    assert is_plain(make(v), [0, 1, 2])
    np.testing.assert_array_equal(v.get_value(), [0, 1, 2])


def test_a_copy_of_several_keeps_what_they_share(ranks):
    ranks(2, device="cpu")
    v = pytensor.shared(np.arange(3.0), name="v")
    synk.broadcast(v)
    one, other = copy.deepcopy([v, v])
    assert one is other
    kept = copy.deepcopy({v.container: v})
    (container, variable), *_ = kept.items()
    assert variable.container is container


def table():
    return pytensor.shared(np.zeros((0, 2)), name="table")


READERS = {
    "as equal": lambda v: synk.function([], v.sum())(),
    "rows": lambda v: synk.function([], v.sum(), sliceable_shareds=[v])(),
    "object": lambda v: synk.on_ranks(lambda rank, v: v.get_value, v)(),
}


@pytest.mark.parametrize("reader", ["as equal", slow("rows"), slow("object")])
def test_what_was_per_rank_in_a_closed_run_is_named_where_the_next_one_reads_it(ranks, reader):
    v = table()
    ranks(2, device="cpu")
    synk.scatter(v, np.arange(8.0).reshape(4, 2))
    synk.close()
    ranks(2, device="cpu")
    with pytest.warns(
        synk.SynkWarning, match="'table' was per rank since synk.scatter in the run before"
    ) as told:
        READERS[reader](v)
    assert len(told) == 1
    READERS[reader](v)  # it is said once


@pytest.mark.parametrize("renew", [synk.scatter, slow(synk.broadcast), slow(None)])
def test_what_gets_new_values_in_the_next_run_is_not_named(ranks, renew):
    v, rows = table(), np.arange(8.0).reshape(4, 2)
    ranks(2, device="cpu")
    synk.scatter(v, rows)
    synk.close()
    if renew is None:
        v.set_value(rows)
    ranks(2, device="cpu")
    if renew is not None:
        renew(v, rows)
    expected = 28 if renew is synk.scatter else 2 * 28
    assert synk.function([], (v.sum(), "sum"), sliceable_shareds=[v])() == expected


def scattered_in_a_run_before(ranks, n_ranks):
    """Return a table of which rank 0's rows are left, in a run of so many ranks."""
    v = table()
    ranks(2, device="cpu")
    synk.scatter(v, np.arange(8.0).reshape(4, 2))
    synk.close()
    ranks(n_ranks, device="cpu")
    return v


@pytest.mark.parametrize("n_ranks", [slow(1), 2])
def test_rows_of_which_rank_0_s_are_left_are_not_saved_as_all(ranks, tmp_path, n_ranks):
    v = scattered_in_a_run_before(ranks, n_ranks)
    w = pytensor.shared(np.zeros(2), name="w")
    with pytest.warns(synk.SynkWarning, match="run before") if n_ranks > 1 else contextlib.nullcontext():
        assert synk.function([], v.sum())() == 6  # every rank has the same
    synk.function([], updates=[(v, 2 * v, None), (w, v.sum(axis=0), None)])()
    for _ in range(2):
        for lost in (v, w):
            with pytest.raises(
                ValueError, match="is per rank since synk.scatter, and the values of all ranks"
            ):
                checkpoint.save(tmp_path / "saved.npz", lost)
        synk.close()
        ranks(3 - n_ranks, device="cpu")
    assert not (tmp_path / "saved.npz").exists()


@pytest.mark.parametrize("renew", [synk.scatter, slow(synk.broadcast)])
def test_rows_that_are_given_anew_are_saved(ranks, tmp_path, renew):
    v, rows = scattered_in_a_run_before(ranks, 2), np.arange(6.0).reshape(3, 2)
    renew(v, rows)
    checkpoint.save(tmp_path / "saved.npz", v)
    synk.close()
    checkpoint.load(
        tmp_path / "saved.npz",
        v := table() if renew is synk.scatter else pytensor.shared(rows * 0, name="table"),
    )
    np.testing.assert_array_equal(v.get_value(), rows)
