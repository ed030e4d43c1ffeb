"""Run graphs as regions and in Python, call after call, and compare: bits, units in the last place, errors.

SmallGraph -> Pair: two functions -> calls, with other lengths and layouts -> what differs
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from support.exact.comparison import Noisy, close, shown
from support.regions.arrays import LAYOUTS
from support.regions.exactness import CLOSE, EXACT, SUMMED, levels_of
from support.regions.graphs import SmallGraph
from synk.compile import ArrayLinker, array_mode
from synk.compile.programs.elementwise.fusion import TAG
from synk.compile.regions.region import Region
from synk.compile.rewriting.rewrites import NATIVE

ULP = 4  # of elementary functions
# OverflowError: an infinity is written to integers at one position.
EXPECTED = (ValueError, IndexError, TypeError, AssertionError, ZeroDivisionError, OverflowError)
NOISE = 12  # trials


def modes() -> dict[bool, tuple[Mode, Mode]]:
    """Return modes of NumPy's functions and of regions: of graphs as they are written, and rewritten."""
    native, python = ArrayLinker(native=True), ArrayLinker(native=False)
    written = Mode(python, None), Mode(native, RewriteDatabaseQuery(include=(TAG, NATIVE)))
    return {False: written, True: (array_mode(python), array_mode(native))}


MODES = modes()  # before anything stands for what they ask


class Pair:
    """A graph's function as regions, and as a Python program."""

    def __init__(self, graph: SmallGraph, rewritten: bool):
        self.graph = graph
        self.python, self.native = (
            pytensor.function(
                graph.inputs,
                [pytensor.Out(one, borrow=False) for one in graph.outputs],
                updates=graph.updates,
                mode=mode,
                on_unused_input="ignore",
            )
            for mode in MODES[rewritten]
        )
        fgraph = self.python.maker.fgraph
        shared = dict(zip(graph.shared, graph.shared, strict=True))
        # A function's inputs: those of the graph, in order, then shared variables.
        start = {one: graph.start[old] for one, old in zip(fgraph.inputs, graph.inputs, strict=False)}
        for container, one in zip(self.python.maker.inputs, fgraph.inputs, strict=True):
            if container.variable in shared:
                start[one] = graph.start[container.variable]
        levels = levels_of(fgraph.outputs, start)
        variables = [one.variable for one in self.python.maker.inputs]
        new = {variables[at]: fgraph.outputs[k] for k, at in fgraph.update_mapping.items()}
        updated = [new[one] for one, _ in graph.updates]
        self.results = [*fgraph.outputs[: len(graph.outputs)], *updated]
        self.levels = [levels[one] for one in self.results]

        # Else what is not exact would be less so from call to call.
        self.lasting = graph.kind != "whole" and max([0, *self.levels[len(graph.outputs) :]]) <= EXACT

    @property
    def has_regions(self) -> bool:
        return any(isinstance(node.op, Region) for node in self.native.maker.fgraph.apply_nodes)

    def run(self, function: Any, calls: list[Any]) -> list[Any]:
        """Return results, the shared variables after, or the error, of calls one after the other."""
        self._reset()
        found, kept = [], []
        for trusted, values in calls:
            if not self.lasting:
                self._reset()
            function.trust_input = trusted
            before = [np.array(one) for one in values]
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    results = function(*values)
                except EXPECTED as error:
                    found.append(error)
                    self._reset()
                    continue
            for one, old in zip(values, before, strict=True):
                np.testing.assert_array_equal(one, old, "an input has changed")
            kept.append((results, [np.array(one) for one in results]))
            found.append(
                [*kept[-1][1], *(np.array(one.get_value(borrow=True)) for one, _ in self.graph.updates)]
            )
            alone([*results], [*values, *(one.get_value(borrow=True) for one in self.graph.shared)])
        for results, copies in kept:
            for one, old in zip(results, copies, strict=True):
                np.testing.assert_array_equal(one, old, "a result has changed after the call")
        return found

    def given(self, values: list[Any]) -> list[Any]:
        """Return values for the inputs of the Python program's graph, shared variables first made new."""
        self._reset()
        rest = [one.variable for one in self.python.maker.inputs[len(values) :]]
        return [*values, *(one.get_value() for one in rest)]

    def _reset(self) -> None:
        first = self.graph.values(0, "plain")[len(self.graph.inputs) :]
        for one, value in zip(self.graph.shared, first, strict=True):
            one.set_value(np.array(value))


def alone(results: list[Any], others: list[Any]) -> None:
    """See that results share memory with nothing."""
    for k, one in enumerate(results):
        for other in (*results[:k], *others):
            assert not np.shares_memory(one, other), "a result shares memory"


def calls_of(graph: SmallGraph) -> list[Any]:
    """Return the arguments of some calls, and whether they are trusted."""
    rng = np.random.default_rng([*graph.seed, 7])
    n = len(graph.inputs)

    def lie(value: Any) -> Any:
        return LAYOUTS[rng.integers(len(LAYOUTS))](value)

    plain, other, none, one = (graph.values(call, "plain")[:n] for call in range(4))
    special = graph.values(4, "special")[:n]
    calls = [(False, plain), (True, [lie(value) for value in other]), (False, special)]
    calls.append((True, one) if rng.random() < 0.3 else (True, none))
    calls.append((True, [lie(value) for value in plain]))
    return calls


def differences(pair: Pair) -> Iterator[str]:
    """Yield the differences between regions and NumPy."""
    calls = calls_of(pair.graph)
    try:
        expected = pair.run(pair.python, calls)
    except AssertionError:
        return  # not of regions
    try:
        found = pair.run(pair.native, calls)
    except AssertionError as error:
        yield f"{error}"[:500]
        return
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        if isinstance(one, Exception) or isinstance(other, Exception):
            if type(one) is not type(other) and not (
                isinstance(one, Exception) and isinstance(other, Exception)
            ):
                yield f"call {k}: {one!r} is not {other!r}"[:600]
            continue
        wrong = [
            at
            for at, (a, b, level) in enumerate(zip(one, other, pair.levels, strict=True))
            if not equal(a, b, level)
        ]
        if not wrong:
            continue
        moved = unstable(pair, calls[k][1], other)
        for at in wrong:
            if not moved[at]:
                pairs = f"{shown(one[at])} is not {shown(other[at])}"
                yield f"call {k}, result {at}, level {pair.levels[at]}: {pairs}"


def equal(found: Any, expected: Any, level: int) -> bool:
    """Return whether two results agree as exactly as their level of exactness demands."""
    if found.dtype != expected.dtype or found.ndim != expected.ndim:
        return False
    if found.shape != expected.shape:
        return found.size == expected.size == 0 and level > EXACT
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected)) or level > SUMMED
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    if same.all() or level <= EXACT:
        return bool(same.all())
    if level == CLOSE:
        with np.errstate(all="ignore"):
            apart = np.abs(found - expected) <= ULP * np.spacing(np.abs(expected))
        return bool((same | apart).all())
    return close(found, expected)


def unstable(pair: Pair, values: list[Any], expected: list[Any]) -> list[bool]:
    """Return for each result whether it is inexact, and noise in the last place of inputs changes it much."""
    inexact = [level > CLOSE for level in pair.levels]
    if not any(inexact):
        return inexact
    fgraph = pair.python.maker.fgraph
    if pair.lasting and pair.graph.updates:
        return inexact  # the shared variables' values are not known any more
    given = dict(zip(fgraph.inputs, pair.given(values), strict=True))
    moved = [False] * len(expected)
    for seed in range(NOISE):
        try:
            noisy = Noisy(pair.results, seed)(given)
        except EXPECTED:
            return inexact
        for k, (one, other) in enumerate(zip(expected, noisy, strict=True)):
            moved[k] |= inexact[k] and not close(one, other)
    return moved
