"""Compare random small graphs as regions with the same graphs in Python, many at a time.

``PYTHONPATH=tests python tests/support/regions/fuzz.py --graphs 10000`` reports on so many.

    seeds -> a chunk: all are built, then compiled together, then run -> Report
"""

import argparse
import os
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytensor
from pytensor.compile.mode import Mode

import support.regions.loops
import support.regions.pieces  # noqa: F401  registers its pieces
from support.exact.comparison import kind
from support.regions.checks import Pair, differences
from support.regions.graphs import SmallGraph
from support.regions.together import compiled_together
from synk.compile.regions.functions import RegionFunction
from synk.compile.regions.native_function import NativeCompilation
from synk.compile.regions.region import Region

CHUNK = 100  # graphs
REWRITTEN = 10  # of so many graphs one goes through all rewrites
PYTENSORS = ("output not supported", "Inconsistency in the inner graph of scan", "('pullback', ")  # errors


@dataclass
class Report:
    """Counts over many graphs."""

    graphs: int = 0
    with_regions: int = 0
    kinds: Counter = field(default_factory=Counter)
    levels: Counter = field(default_factory=Counter)
    calls: int = 0
    gave_up: int = 0
    differences: list[str] = field(default_factory=list)
    seconds: Counter = field(default_factory=Counter)
    regions: int = 0

    def line(self) -> str:
        spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        return (
            f"{self.graphs} graphs ({self.with_regions} with regions), {len(self.kinds)} kinds of Op in "
            f"{self.regions} regions, gave up in {self.gave_up} of {self.calls} calls, "
            f"differences {len(self.differences)}; {spent}"
        )


def chunk(seeds: Iterable[tuple[int, ...]], compilation: NativeCompilation, report: Report) -> None:
    """Build graphs, compile them together, run and compare them."""
    began = time.process_time()
    pairs = []
    for seed in seeds:
        try:
            with pytensor.config.change_flags(mode=Mode(linker="py", optimizer=None), on_opt_error="ignore"):
                graph = SmallGraph(seed)
                # What a loop keeps of its states is for rewrites to say.
                rewritten = seed[-1] % REWRITTEN == 0 or (graph.has_loops and seed[-1] % 3 > 0)
                pairs.append(Pair(graph, rewritten))
        except Exception as error:
            # PyTensor's own, when it makes a graph or rewrites one.
            if not any(known in str(error) for known in PYTENSORS):
                report.differences.append(f"graph {seed}: {traceback.format_exc()[-1500:]}")
    report.seconds["built"] += time.process_time() - began
    began = time.perf_counter()
    report.regions += sum(one.name not in compilation._known for one in compilation._functions)
    compilation.compile()
    assert not compilation._failed
    report.seconds["compiled"] += time.perf_counter() - began
    began = time.perf_counter()
    for pair in pairs:
        report.graphs += 1
        report.with_regions += pair.has_regions
        report.kinds.update(set(kinds_of(pair)))
        report.levels.update(pair.levels)
        for said in differences(pair):
            report.differences.append(f"graph {pair.graph.seed}: {said}")
    report.seconds["run"] += time.perf_counter() - began


def kinds_of(pair: Pair) -> Iterator[str]:
    """Yield the kinds of Op in regions, those of the scalar Ops of fused ones too."""
    for node in pair.native.maker.fgraph.apply_nodes:
        if isinstance(node.op, Region):
            for inner in node.op.fgraph.apply_nodes:
                scalar = getattr(inner.op, "scalar_op", None)
                if hasattr(scalar, "fgraph"):
                    yield from (type(one.op).__name__ for one in scalar.fgraph.apply_nodes)
                else:
                    yield kind(inner.op)


def compared(seeds: Sequence[tuple[int, ...]], size: int = CHUNK) -> Iterator[Report]:
    """Compare graphs chunk by chunk, and yield the report after each."""
    report = Report()
    whole, otherwise = RegionFunction.__call__, RegionFunction._retry

    def counted(self: Any, *inputs: Any, out: Any = None) -> Any:
        report.calls += 1
        return whole(self, *inputs, out=out)

    def noted(self: Any, inputs: Any) -> Any:
        report.gave_up += 1
        return otherwise(self, inputs)

    RegionFunction.__call__, RegionFunction._retry = counted, noted  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings(), compiled_together() as compilation:
            warnings.simplefilter("ignore")
            for first in range(0, len(seeds), size):
                chunk(seeds[first : first + size], compilation, report)
                yield report
    finally:
        RegionFunction.__call__, RegionFunction._retry = whole, otherwise  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first graph")
    parser.add_argument("--chunk", type=int, default=CHUNK)
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.graphs)
    shown = 0
    for report in compared([(arguments.seed, number) for number in numbers], arguments.chunk):
        for said in report.differences[shown:]:
            print(said, flush=True)
        shown = len(report.differences)
        print(report.line(), flush=True)
    print("kinds:", ", ".join(f"{name} {count}" for name, count in report.kinds.most_common()))
    print("levels:", dict(report.levels))
    print(f"{sum(os.times()[:4]):.0f} s of processors")


if __name__ == "__main__":
    main()
