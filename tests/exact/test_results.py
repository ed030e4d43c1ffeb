"""Exact updates: one process's value on every rank, those without rows included."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.exact import with_exact_updates
from support.processes.of_rank import runs_of, same_on_all
from support.slow import slow
from synk.exact.collectives.collectives import all_sum
from synk.exact.run_values import first_row, leads, n_rows, total_rows

module_ranks = runs_of(3, later=[1, 2])

ROWS = np.random.default_rng(5).normal(size=(7, 2))
NUMBERS_OF_ROWS = [7, 2, 1]  # with 3 ranks, the last two leave some without rows


def shared(value, name):
    return pytensor.shared(np.asarray(value), name=name)


@pytest.mark.parametrize("num_slices", [1, slow(2), 4])
@pytest.mark.parametrize("n", NUMBERS_OF_ROWS)
def test_numbers_of_all_rows_are_counted_once_a_call(module_ranks, n, num_slices):
    x = pt.matrix("x")
    seen, scaled, calls = shared(0, "seen"), shared(1.0, "scaled"), shared(0, "calls")
    f = with_exact_updates(
        [x],
        [(x.max(0), "max"), x.mean(0)],
        exact=[(seen, seen + total_rows), (scaled, scaled * 0.1 + total_rows), (calls, calls + 1)],
    )
    for _ in range(2):
        f(ROWS[:n], num_slices=num_slices)
    assert same_on_all(seen, module_ranks) == 2 * n
    assert same_on_all(scaled, module_ranks) == (0.1 + n) * 0.1 + n
    assert same_on_all(calls, module_ranks) == 2


@pytest.mark.parametrize("n", [*NUMBERS_OF_ROWS, 0])
def test_sums_over_all_ranks_are_values_of_ranks_without_rows_too(module_ranks, n):
    x, step = pt.matrix("x"), pt.scalar("step")
    total, squares, own = shared(np.ones(2), "total"), shared(np.ones(2), "squares"), shared(3.0, "own")
    f = with_exact_updates(
        [x],
        (x.sum(0), "sum"),
        exact=[
            (total, total + step * all_sum(x.sum(0))),
            (squares, all_sum((x**2).sum(0)) + total),  # of the value before the call
        ],
        updates=[(own, x.sum(), "sum")],
        bcast_inputs=[step],
    )
    sums, wanted = np.ones(2), None
    for _ in range(2):
        np.testing.assert_allclose(f(ROWS[:n], 0.5), ROWS[:n].sum(0), atol=1e-12)
        sums, wanted = sums + 0.5 * ROWS[:n].sum(0), (ROWS[:n] ** 2).sum(0) + sums
        np.testing.assert_allclose(same_on_all(total, module_ranks), sums)
        np.testing.assert_allclose(same_on_all(squares, module_ranks), wanted)
    parts = np.array_split(ROWS[:n], module_ranks)
    np.testing.assert_allclose(synk.gather(own), [part.sum() for part in parts])  # 0 without rows


def test_exact_updates_and_those_without_rows_read_the_values_before_the_call(module_ranks):
    x = pt.matrix("x")
    one, other, count = shared(1.0, "one"), shared(10.0, "other"), shared(0, "count")
    f = with_exact_updates(
        [x],
        exact=[
            (one, other + 0 * all_sum(x.sum())),
            (other, one * 2),
            (count, count + pt.cast(all_sum(pt.switch(leads, 1, 0)), "int64") + one.astype("int64")),
        ],
    )
    f(ROWS[:1])
    assert [same_on_all(variable, module_ranks) for variable in (one, other, count)] == [10, 2, 2]


def test_what_a_rank_without_rows_computes_needs_rows_of_some_kind(module_ranks):
    """It computes from a row that stands in: there is no maximum of none, and no first of none."""
    x, labels = pt.matrix("x"), pt.ivector("labels")
    table = shared(np.array([3.0, 4.0]), "table")
    norm = all_sum((x - x.max(0) + x[0]).sum() + table[labels].sum())
    seen = shared(0.0, "seen")
    f = with_exact_updates([x, labels], [(x.max(0), "max"), (x.argmin(0), "max")], exact=[(seen, norm)])
    names = np.array([9, 9, 1, 0, 1, 9, 0, 1], "int32")  # 9 is not selected
    rows = np.arange(16.0).reshape(8, 2)
    data = synk.data(rows), synk.data(names)
    for batch in (slice(2, 4), [4, 3], slice(2, 3), [7]):
        picked, chosen = rows[batch], names[batch]
        parts = [part for part in np.array_split(picked, module_ranks) if len(part)]
        wanted = sum((part - part.max(0) + part[0]).sum() for part in parts)
        largest, _ = f(*data, batch=batch)
        np.testing.assert_array_equal(largest, picked.max(0))
        np.testing.assert_allclose(
            same_on_all(seen, module_ranks), wanted + np.array([3.0, 4.0])[chosen].sum()
        )


@pytest.mark.parametrize("mode", [None, *map(slow, ["debug", "FAST_COMPILE"])])
def test_sliceable_rows_on_some_ranks_only(module_ranks, mode):
    variable, seen, rows_seen = shared(np.zeros((0, 2)), "rows"), shared(0.0, "seen"), shared(0, "rows_seen")
    synk.scatter(variable, ROWS[:2])  # with 3 ranks the last one has none to show
    f = with_exact_updates(
        [],
        exact=[(seen, all_sum(variable.max(0).sum())), (rows_seen, rows_seen + total_rows)],
        sliceable_shareds=[variable],
        mode=mode,
    )
    shards = np.array_split(ROWS[:2], module_ranks)
    f()
    wanted = sum(shard.max(0).sum() for shard in shards if len(shard))
    np.testing.assert_allclose(same_on_all(seen, module_ranks), wanted)
    assert same_on_all(rows_seen, module_ranks) == 2
    if module_ranks > 1:
        f(batch_s=[slice(0, 0), slice(0, 1), *[slice(0, 0)] * (module_ranks - 2)])
        np.testing.assert_allclose(same_on_all(seen, module_ranks), shards[1].max(0).sum())
        assert same_on_all(rows_seen, module_ranks) == 3


def test_own_rows_are_found_among_those_of_all_ranks_even_where_there_are_none(module_ranks):
    x, everything = pt.matrix("x"), pt.matrix("everything")
    seen = shared(0.0, "seen")
    mine = everything[first_row : first_row + n_rows]
    f = with_exact_updates(
        [x], bcast_inputs=[everything], exact=[(seen, all_sum(((x - mine) ** 2).sum() + x.shape[0]))]
    )
    for n in NUMBERS_OF_ROWS:
        f(ROWS[:n], ROWS[:n])
        assert same_on_all(seen, module_ranks) == n


def test_random_states_marked_exact_advance_once_whatever_the_slices(module_ranks):
    x = pt.matrix("x")
    state = pytensor.shared(np.random.default_rng(3), name="state")
    following, draws = pt.random.normal(size=(total_rows,), rng=state, return_next_rng=True)
    f = with_exact_updates([x], (draws[first_row : first_row + n_rows], "gather"), exact=[(state, following)])
    one = np.random.default_rng(3)
    n = len(np.array_split(ROWS, module_ranks)[0])
    for _ in range(2):
        got = f(ROWS, num_slices=2)
        np.testing.assert_array_equal(got[:n], one.normal(size=7)[:n])  # rank 0 has the stream of one process


def test_integers_that_wrap_while_they_are_added_up_wrap_as_in_one_process(module_ranks):
    x = pt.matrix("x", dtype="int8")
    rows = np.array([[100], [100], [1]], "int8")
    f = synk.function([x], [x.sum(axis=0, acc_dtype="int8"), x.prod(axis=0, acc_dtype="int8"), x.sum(axis=0)])
    wrapped, product, counted = f(rows)
    assert wrapped == rows.sum(axis=0, dtype="int8") == -55
    assert product == rows.prod(axis=0, dtype="int8") == 16
    assert counted == 201
