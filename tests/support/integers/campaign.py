"""Compare random graphs of integers with NumPy: by `array_mode`, and on 1, 2, 3 and 5 real ranks.

``PYTHONPATH=tests python tests/support/integers/campaign.py --graphs 5000`` prints counts and each difference
with its seed; it exits with 1 if there is any.

    seeds -> chunks of graphs -> one function a chunk -> each result beside NumPy's -> Report

Many graphs make one function, for what a function costs is paid once; where that fails, each makes its own.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor

import synk
from support.integers.graphs import ROWS, IntegerGraph
from synk.compile import array_mode
from synk.compile.linker import ArrayLinker

RANKS = (0, 1, 2, 3, 5)  # 0 stands for `array_mode` in this process
CHUNK = 25  # graphs
REFUSALS = (TypeError, ValueError, NotImplementedError, synk.SynkError)


@dataclass
class Report:
    """Counts over many graphs."""

    graphs: int = 0
    results: int = 0
    refusals: Counter = field(default_factory=Counter)  # errors, which are not silent
    refused: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the seed of the first graph of each
    differences: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.graphs} graphs, {self.results} results compared, {sum(self.refusals.values())} refused, "
            f"{len(self.differences)} differences"
        )


Build = Callable[[Sequence[IntegerGraph]], Any]


def by_linker(graphs: Sequence[IntegerGraph]) -> Callable[[int], list[Any]]:
    """Return a function that computes all graphs by one compiled function of `array_mode`."""
    function = pytensor.function(
        [one for graph in graphs for one in (*graph.inputs, *graph.bcast)],
        [value.variable for graph in graphs for value in graph.outputs],
        updates=[(one, value.variable) for graph in graphs for one, value in graph.updates],
        mode=array_mode(),
        on_unused_input="ignore",
    )

    def call(k: int) -> list[Any]:
        return function(*(a for graph in graphs for a in graph.values(k, [*graph.inputs, *graph.bcast])))

    return call


def on_ranks(graphs: Sequence[IntegerGraph], native: bool = False) -> Callable[[int], list[Any]]:
    """Return a function that computes all graphs by one `synk.function` on ranks."""
    function = synk.function(
        [one for graph in graphs for one in graph.inputs],
        [value.variable for graph in graphs for value in graph.outputs],
        bcast_inputs=[one for graph in graphs for one in graph.bcast],
        updates=[(one, value.variable) for graph in graphs for one, value in graph.updates],
        mode=array_mode(ArrayLinker(native=native)),
        on_unused_input="ignore",
    )

    def call(k: int) -> list[Any]:
        scattered = [array for graph in graphs for array in graph.values(k, graph.inputs)]
        return function(*scattered, *(a for graph in graphs for a in graph.values(k, graph.bcast)))

    return call


def examine(graphs: Sequence[IntegerGraph], build: Build, report: Report, where: str) -> None:
    """Compare graphs, all in one function; if that fails, one by one."""
    try:
        call = build(graphs)
        found = [[*_run(graphs, call, k)] for k in range(len(ROWS))]
    except REFUSALS as error:
        if len(graphs) > 1:
            half = len(graphs) // 2
            examine(graphs[:half], build, report, where)
            examine(graphs[half:], build, report, where)
            return
        report.graphs += 1
        said = str(error).splitlines()[0] if str(error) else ""
        kind = f"{type(error).__name__}: {said[:90]}"
        report.refusals[kind] += 1
        report.refused.setdefault(kind, graphs[0].seed)
        return
    report.graphs += len(graphs)
    for at, graph in enumerate(graphs):
        report.results += sum(len(results[at]) for results in found)
        said = (text for k in range(len(ROWS)) for text in differences(graph, k, found[k][at]))
        if (text := next(said, None)) is not None:
            report.differences.append(f"graph {graph.seed} {where}, {text}")


def differences(graph: IntegerGraph, k: int, results: Sequence[Any]) -> Iterator[str]:
    """Yield the differences between the results of a call and NumPy's."""
    for at, (one, (other, exact)) in enumerate(zip(results, graph.expected(k), strict=True)):
        if not equal(one, other, exact):
            outputs = [value.text for value in graph.outputs]
            said = f"{ROWS[k]} rows, result {at}: {shown(one)} is not {shown(other)}"
            yield f"{said}\n{graph.text()}\n    -> {outputs}"


def _run(graphs: Sequence[IntegerGraph], call: Callable[[int], list[Any]], k: int) -> Iterator[list[Any]]:
    for graph in graphs:
        for one, value in zip(graph.shared, graph.values(k, graph.shared), strict=True):
            if synk.is_open():
                synk.broadcast(one, value)
            else:
                one.set_value(value)
    outputs = iter(call(k))
    for graph in graphs:
        updated = [one.get_value() for one, _ in graph.updates]
        yield [*(np.asarray(next(outputs)) for _ in graph.outputs), *updated]


def equal(found: Any, expected: Any, exact: bool) -> bool:
    """Return whether a result equals NumPy's, in its dtype, too, if that is an integer one."""
    if found.shape != expected.shape or (exact and found.dtype != expected.dtype):
        return False
    return bool(np.array_equal(found, expected) if exact else np.allclose(found, expected, rtol=1e-5))


def shown(value: Any) -> str:
    return f"{value.dtype}{value.shape}{value.ravel()[:12].tolist()}"


def chunks(seeds: Sequence[tuple[int, ...]], size: int = CHUNK) -> Iterator[list[IntegerGraph]]:
    """Yield graphs, some at a time."""
    for first in range(0, len(seeds), size):
        yield [IntegerGraph(seed) for seed in seeds[first : first + size]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--native", action="store_true", help="regions in C on ranks, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = [(arguments.seed, k) for k in range(arguments.first, arguments.first + arguments.graphs)]
    failed = False
    for n in arguments.ranks:
        report, began, shown_already = Report(), time.perf_counter(), 0
        where = f"on {n} ranks" if n else "by array_mode"
        if n:
            synk.fork(n, device="cpu")
        for graphs in chunks(seeds):
            examine(graphs, (lambda g: on_ranks(g, arguments.native)) if n else by_linker, report, where)
            for said in report.differences[shown_already:]:
                print(said, flush=True)
            shown_already = len(report.differences)
        if n:
            synk.close()
        print(f"{where}: {report.line()}, {time.perf_counter() - began:.0f} s", flush=True)
        for said, count in report.refusals.most_common():
            print(f"    {count} × {said}, first graph {report.refused[said]}")
        failed |= bool(report.differences)
    sys.exit(failed)


if __name__ == "__main__":
    main()
