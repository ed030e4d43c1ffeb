"""Graphs read where a slice is in a call: ``total_rows``, ``first_row`` and ``leads``.

A function without an operation gathers them: one entry for each slice that has rows, in rank order.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import runs_of
from synk.exact.run_values import first_row, leads, n_rows, total_rows
from synk.ops import all_sum

module_ranks = runs_of(3, later=[1, 2])

NUMBERS = (n_rows, total_rows, first_row, leads)
ROWS = np.arange(24.0).reshape(12, 2)


def counting(inputs=(), **keywords):
    """Return a function that gathers the numbers of every slice."""
    return synk.function(list(inputs), [(number, "gather") for number in NUMBERS], **keywords)


def expected(counts, num_slices=1):
    """Return the numbers of ``counts`` rows of each rank."""
    lengths = [
        [len(part) for part in np.array_split(np.arange(count), num_slices) if len(part)] for count in counts
    ]
    lengths = list(itertools.chain(*lengths))
    starts = [0, *itertools.accumulate(lengths)][:-1]
    return [lengths, [sum(counts)] * len(lengths), starts, [start == 0 for start in starts]]


def counts_of(n, n_ranks):
    return [len(part) for part in np.array_split(np.arange(n), n_ranks)]


def check(got, wanted):
    for array, number, values in zip(got, NUMBERS, wanted, strict=True):
        assert array.dtype == number.dtype
        assert array.tolist() == values


@pytest.mark.parametrize("num_slices", [1, 2, 5])
@pytest.mark.parametrize("in_data", [False, True])
def test_scattered_rows_are_numbered_over_ranks_and_slices(module_ranks, num_slices, in_data):
    f = counting([pt.matrix("x")])
    data = synk.data(ROWS)
    for n in (12, 7, 2, 1, 7):  # uneven ones, and fewer than ranks
        source = data if in_data else ROWS
        check(f(source, batch=n, num_slices=num_slices), expected(counts_of(n, module_ranks), num_slices))


@pytest.mark.parametrize("num_slices", [1, 2])
def test_numbers_are_those_of_the_selection_and_not_of_the_data(module_ranks, num_slices):
    f, data = counting([pt.matrix("x")]), synk.data(ROWS)
    for batch in (slice(5, 10), [11, 0, 0, 3, 7]):
        check(f(data, batch=batch, num_slices=num_slices), expected(counts_of(5, module_ranks), num_slices))


def test_calls_of_equally_many_rows_may_differ_in_all_rows(module_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(n_rows, None), (total_rows, None)])
    for n in range(1, 8):
        assert f(ROWS[:n]) == [-(-n // module_ranks), n]


@pytest.mark.parametrize("number", NUMBERS, ids=[number.name for number in NUMBERS])
def test_an_input_is_used_by_its_number_of_rows_alone(number):
    assert synk.function([pt.matrix("x")], (number, None))(ROWS).dtype == number.dtype


def test_without_rows_and_without_scattered_inputs_rank_0_leads(module_ranks):
    seen = [pytensor.shared(np.zeros((), number.dtype), name=number.name) for number in NUMBERS]
    updates = list(zip(seen, NUMBERS, [None] * 4, strict=True))
    no_rows = synk.function([pt.matrix("x")], updates=updates)
    nothing_scattered = synk.function([], updates=updates)
    for f, arguments, count in ((no_rows, [ROWS[:0]], 0), (nothing_scattered, [], 1)):
        f(*arguments)
        assert [synk.gather(variable).tolist() for variable in seen] == [
            [count] * module_ranks,
            [count] * module_ranks,
            [0] * module_ranks,
            [True] + [False] * (module_ranks - 1),
        ]
    check(counting([pt.matrix("x")])(ROWS[:0]), [[0], [0], [0], [True]])


@pytest.mark.parametrize("num_slices", [1, 2])
def test_sliceable_rows_are_numbered_over_the_selections_of_ranks(module_ranks, num_slices):
    variable = pytensor.shared(np.zeros((0, 2)), name="rows")
    synk.scatter(variable, np.tile(ROWS, (3, 1)))
    outputs = [(number + 0 * variable.sum().astype(number.dtype), "gather") for number in NUMBERS[:3]]
    f = synk.function([], [*outputs, (leads & (variable.sum() >= 0), "gather")], sliceable_shareds=[variable])
    for selections in ([slice(1, 4), [0, 0], slice(2, 3)], [slice(0, 0), [3, 1, 1], [0]]):
        batch_s = (3 * selections)[:module_ranks]
        counts = [len(range(9)[one]) if isinstance(one, slice) else len(one) for one in batch_s]
        if not sum(counts):
            continue
        # The first rank that has rows leads.
        check(f(batch_s=batch_s, num_slices=num_slices), expected(counts, num_slices))


def test_as_pytensor_has_all_rows_in_one_slice():
    check(
        [np.atleast_1d(value) for value in counting([pt.matrix("x")]).as_pytensor(ROWS[:5])],
        [[5], [5], [0], [True]],
    )
    outside = pytensor.function([], [number * 1 for number in NUMBERS], mode="FAST_COMPILE")
    assert [value.item() for value in outside()] == [1, 1, 0, 1]


def test_one_process_and_all_ranks_number_rows_alike(module_ranks):
    x = pt.matrix("x")
    numbered = synk.function([x], (first_row + pt.arange(x.shape[0]), "gather"))
    for n, num_slices in ((12, 1), (12, 3), (2, 1), (0, 1)):
        assert numbered(ROWS[:n], num_slices=num_slices).tolist() == list(range(n))
        assert numbered.as_pytensor(ROWS[:n]).tolist() == list(range(n))


def test_rows_of_a_gathered_output_are_put_back_on_their_axis():
    x = pt.matrix("x")
    columns = synk.function([x], [(x * 2, "gather"), (x, "gather"), x.sum()])
    columns._definition = replace(columns._definition, output_axes=(1, 0, 0))
    for results in (columns(ROWS), columns(ROWS, num_slices=2), columns.as_pytensor(ROWS)):
        np.testing.assert_array_equal(results[0], 2 * ROWS.T)
        np.testing.assert_array_equal(results[1], ROWS)


def test_a_rank_without_rows_counts_the_row_that_stands_in(module_ranks):
    x = pt.matrix("x")
    weights = 1 / (1 + pt.arange(n_rows))
    total = synk.function([x], (all_sum((x * weights[:, None]).sum(0)), None))
    for n in range(1, 7):
        wanted = sum(
            (part / np.arange(1, len(part) + 1)[:, None]).sum(0)
            for part in np.array_split(ROWS[:n], module_ranks)
        )
        np.testing.assert_allclose(total(ROWS[:n]), wanted)
