"""Compare what ranks compute for a graph with what plain PyTensor computes for it in one process.

    RandomGraph -> its function by PyTensor's own Ops, and on simulated ranks -> Finding -> Report

A difference counts unless the graph's own result moves as much when each of its values is one unit in the
last place off: then no order of additions is the right one. What is left is shrunk to the first variable
that is wrong.
"""

import argparse
import io
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from support.exact.graphs import RandomGraph
from support.exact.simulated import Graph, Simulated, one_process
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collectives import AllGatherOp
from synk.exact.definition import UNDECLARED, Definition, Update

PLAIN = Mode(linker="py", optimizer=None)
ROWS = (0, 1, 2, 7, 12)
RANKS = (1, 2, 3, 5)
TOLERANCE = 1e-9
TRIALS = 24  # of noise
LINES = 40  # of a graph that is shown


@dataclass
class Finding:
    """The findings of comparing one graph."""

    kinds: set[str]
    refused: str | None = None
    gathers: list[str] = field(default_factory=list)  # the Ops whose inputs were gathered
    whole: bool = False  # a scattered input was gathered as it is
    unstable: int = 0  # comparisons that noise of one ulp would have failed
    of_linker: int = 0  # differences that the linker has without ranks, as of bounds that are no numbers
    compared: int = 0
    difference: str | None = None


def kind(op: Any) -> str:
    """Return the name under which an Op is counted."""
    if isinstance(op, Elemwise):
        return type(op.scalar_op).__name__
    if isinstance(op, Blockwise):
        return f"Blockwise({type(op.core_op).__name__})"
    return type(op).__name__


def results_of(definition: Definition) -> list[Variable]:
    return [*definition.outputs, *(update.value for update in definition.updates)]


def plain_function(definition: Definition) -> Any:
    """Return PyTensor's own function, with new values of updates as outputs."""
    return pytensor.function(
        list(definition.all_inputs), results_of(definition), mode=PLAIN, on_unused_input="ignore"
    )


def close(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    """Return whether two results have one shape and dtype, and equal values up to rounding."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.ndim != other.ndim:
        return False
    if one.size == other.size == 0:
        return True  # PyTensor's Scan forgets the lengths of what it collects in no steps
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "biu":
        return np.array_equal(one, other)
    if one.dtype == "float32":
        tolerance = 1e-4
    size = np.abs(one[np.isfinite(one)]).max(initial=1)
    return np.allclose(one, other, tolerance, tolerance * size, equal_nan=True)


class Noisy(Graph):
    """A graph in which each float that an Op returns is one unit in the last place off, or none."""

    def __init__(self, results: Sequence[Any], seed: int):
        super().__init__(results)
        rng = np.random.default_rng(seed)

        def noisy(run: Any) -> Any:
            def moved(value: Any) -> Any:
                if getattr(value, "dtype", np.dtype("O")).kind != "f":
                    return value
                way = rng.choice([-np.inf, np.inf, 0], np.shape(value))
                return np.where(way == 0, value, np.nextafter(value, way.astype(value.dtype)))

            def call(*inputs: Any) -> Any:
                found = run(*inputs)
                return tuple(map(moved, found)) if isinstance(found, tuple | list) else moved(found)

            return call

        self._nodes = [(node, noisy(run)) for node, run in self._nodes]


def moves(definition: Definition, values: Sequence[Any], still: Sequence[Any]) -> list[bool]:
    """Return for each result whether noise in the last place of inputs changes it beyond the tolerance."""
    results = results_of(definition)
    given = dict(zip(definition.all_inputs, values, strict=True))
    moved = [False] * len(results)
    for seed in range(TRIALS):
        for k, (one, other) in enumerate(zip(still, Noisy(results, seed)(given), strict=True)):
            moved[k] |= not close(one, other)
    return moved


def differences(
    definition: Definition, simulated: Simulated, values: Any, cases: Any, finding: Finding
) -> Iterator[str]:
    """Yield the differences between one process and ranks, for each number of rows and of ranks."""
    plain = plain_function(definition)
    for n, n_ranks in cases:
        given = values(n)
        with np.errstate(all="ignore"):
            try:
                expected = plain(*given)
            except Exception:
                continue  # an index beyond the rows there are, an extreme of none
        try:
            found = simulated(given, n_ranks)
        except Exception as error:
            yield f"{n} rows on {n_ranks} ranks: {type(error).__name__}: {str(error)[:300]}"
            continue
        finding.compared += len(expected)
        wrong = [k for k, pair in enumerate(zip(expected, found, strict=True)) if not close(*pair)]
        own = one_process(definition, given) if wrong else found
        finding.of_linker += sum(close(own[k], found[k]) for k in wrong)
        wrong = [k for k in wrong if not close(own[k], found[k])]
        if wrong:
            moved = moves(definition, given, expected)
            finding.unstable += sum(moved[k] for k in wrong)
            for k in wrong:
                if not moved[k]:
                    pair = f"{shown(found[k])} is not {shown(expected[k])}"
                    yield f"{n} rows on {n_ranks} ranks, result {k}: {pair}"


def shown(array: Any) -> str:
    array = np.asarray(array)
    return f"{array.dtype}{array.shape} {np.array2string(array.ravel()[:4], precision=17)}"


def with_output(definition: Definition, variable: Variable, update: Update | None = None) -> Definition:
    """Return a definition with a single result."""
    if update is not None:
        return replace(definition, outputs=(), output_modes=(), output_axes=(), updates=(update,))
    return replace(definition, outputs=(variable,), output_modes=(UNDECLARED,), output_axes=(0,), updates=())


def shrunk(definition: Definition, values: Any, cases: Any) -> str:
    """Return the first variable of a graph that differs by itself, as text; else the whole graph."""
    for node in topological(results_of(definition)):
        for variable in node.outputs:
            if not hasattr(variable.type, "dtype") or isinstance(node.op, AllocEmpty):
                continue
            smaller = with_output(definition, variable)
            try:
                found = differences(smaller, Simulated(smaller), values, cases, Finding(set()))
                difference = next(found, None)
            except Exception as error:
                difference = repr(error)
            if difference is not None:
                return f"{difference}\n{printed([variable])}"
    return f"only the whole:\n{printed(results_of(definition))}"


def printed(results: Sequence[Variable]) -> str:
    text = io.StringIO()
    pytensor.dprint(list(results), file=text, print_type=True)
    lines = text.getvalue().splitlines()
    return "\n".join(lines[:LINES] + ["..."] * (len(lines) > LINES))


def examined(seed: tuple[int, ...]) -> Finding:
    """Build a random graph, compare ranks with one process, and return the differences."""
    # What is a graph within an Op would be compiled by Numba for seconds.
    with warnings.catch_warnings(), pytensor.config.change_flags(mode=PLAIN):
        warnings.simplefilter("ignore")
        graph = RandomGraph(seed)
        definition = graph.definition
        nodes = topological(results_of(definition))
        finding = Finding({kind(node.op) for node in nodes})
        rng = np.random.default_rng(seed)
        cases = [(n, int(k)) for n in rng.permutation(ROWS)[:3] for k in rng.permutation(RANKS)[:2]]
        try:
            simulated = Simulated(definition)
        except ValueError as error:
            finding.refused = str(error)
            return finding
        except Exception as error:
            finding.difference = f"seed {seed}: {error!r}\n{shrunk(definition, graph.values, cases)}"
            return finding
        _look_at_gathers(finding, simulated.exact, definition)
        difference = next(differences(definition, simulated, graph.values, cases, finding), None)
        if difference is not None:
            finding.difference = f"seed {seed}: {difference}\n{shrunk(definition, graph.values, cases)}"
        return finding


def _look_at_gathers(finding: Finding, exact: Definition, definition: Definition) -> None:
    nodes = topological(results_of(exact))
    gathered = {node.outputs[0] for node in nodes if isinstance(node.op, AllGatherOp) and _has_rows(node)}
    finding.whole = any(one.owner.inputs[0] in definition.inputs for one in gathered)
    finding.gathers = [kind(node.op) for node in nodes if not gathered.isdisjoint(node.inputs)]


def _has_rows(node: Any) -> bool:
    """Return whether a value has rows, rather than one value on each rank."""
    return node.inputs[0].type.shape[node.op.axis] != 1


@dataclass
class Report:
    """Counts over many graphs."""

    graphs: int = 0
    kinds: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    gathers: int = 0
    whole: int = 0
    gathered_by: Counter = field(default_factory=Counter)
    unstable: int = 0
    of_linker: int = 0
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.graphs += 1
        self.kinds.update(finding.kinds)
        if finding.refused:
            self.refusals[finding.refused] += 1
        self.gathers += bool(finding.gathers)
        self.whole += finding.whole
        self.gathered_by.update(set(finding.gathers))
        self.unstable += finding.unstable
        self.of_linker += finding.of_linker
        self.compared += finding.compared
        if finding.difference:
            self.differences.append(finding.difference)

    def line(self) -> str:
        refused = sum(self.refusals.values())
        n = max(self.graphs, 1)
        results = (
            f"{self.compared} results compared ({self.unstable} unstable, {self.of_linker} of the linker)"
        )
        return (
            f"{self.graphs} graphs of {len(self.kinds)} kinds of Op, {results}; refused {refused / n:.1%}, "
            f"with gathers {self.gathers / n:.1%}, of a whole input {self.whole / n:.1%}; "
            f"differences {len(self.differences)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    arguments = parser.parse_args()
    report, began = Report(), time.time()
    for number in range(arguments.first, arguments.first + arguments.graphs):
        found = examined((arguments.seed, number))
        report.add(found)
        if found.difference:
            print(found.difference, flush=True)
        if number % 100 == 99:
            print(f"{report.line()} in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    print(report.line())
    print("kinds:", ", ".join(f"{name} {count}" for name, count in report.kinds.most_common()))
    print("gathered by:", ", ".join(f"{name} {count}" for name, count in report.gathered_by.most_common()))
    for refusal, count in report.refusals.most_common():
        print(f"refused {count} times: {refusal[:300]}")
