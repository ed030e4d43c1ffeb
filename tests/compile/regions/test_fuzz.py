"""Random graphs, as regions and in Python: the same numbers, or the same kind of error."""

import warnings

import numpy as np
import pytensor
import pytest

from support.exact.comparison import PLAIN, close, moves, results_of, shown
from support.exact.graphs import RandomGraph
from support.regions.fuzz import compared
from synk.compile import ArrayLinker, array_mode

ROWS = (7, 12, 1, 0)


def built(seed):
    """Return a random graph, its definition, and its functions in C and in Python."""
    with pytensor.config.change_flags(mode=PLAIN):
        graph = RandomGraph((16, seed))
        definition = graph.definition
        functions = [
            pytensor.function(
                list(definition.all_inputs),
                results_of(definition),
                mode=array_mode(ArrayLinker(native=native)),
                on_unused_input="ignore",
            )
            for native in (True, False)
        ]
    return graph, definition, functions


def outcome(function, values):
    """Return results, or the error instead."""
    with np.errstate(all="ignore"):
        try:
            return function(*values)
        except (ValueError, IndexError, AssertionError) as error:
            return error


def differences(seed):
    """Yield what differs."""
    graph, definition, (native, python) = built(seed)
    for rows in ROWS:
        values = graph.values(rows)
        expected, found = outcome(python, values), outcome(native, values)
        if isinstance(expected, Exception) or isinstance(found, Exception):
            # Of several that there are, either may be met first.
            if not (isinstance(expected, Exception) and isinstance(found, Exception)):
                yield f"graph {seed}, {rows} rows: {found!r} is not {expected!r}"
            continue
        wrong = [k for k, pair in enumerate(zip(expected, found, strict=True)) if not close(*pair)]
        unstable = moves(definition, values, expected) if wrong else ()
        for k in wrong:
            if not unstable[k]:
                yield f"graph {seed}, {rows} rows, {k}: {shown(found[k])} is not {shown(expected[k])}"


def check(seeds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [said for seed in seeds for said in differences(seed)] == []


def test_random_graphs():
    check(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_many_random_graphs(first):
    check(range(first, first + 100))


def reported(numbers):
    report = [*compared([(17, number) for number in numbers])][-1]
    assert report.differences == []
    return report


def test_small_graphs_of_all_kinds():
    report = reported(range(200))
    assert report.with_regions > 150
    assert report.gave_up < report.calls / 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_many_small_graphs(first):
    reported(range(first, first + 1000))
