"""The ranks, rivals, sizes and patience that every section measures with.

opened -> fork, assemble -> Workbench ... close
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import synk
from synk.tools.bench.crew import CrewLost, RivalProcesses
from synk.tools.bench.how_busy import available_memory
from synk.tools.bench.pairs import Comparison, compare
from synk.tools.bench.rivals import MEMCPY, RIVALS, assemble

LARGE = 25_500_000  # float32: the gradient of a ResNet-50, 102 MB
SMALL = 1_000  # float32: 4 kB
SECTION_SECONDS = 10.0  # for a section to measure, beyond the fewest rounds
SHARED_MEMORY = "/dev/shm"


class BenchSizes(NamedTuple):
    """The sizes that are measured."""

    large: int  # float32 items
    small: int
    repeats: int  # of something that takes microseconds, for one time
    idle_seconds: float


def sizes(n_ranks: int, quick: bool = False) -> BenchSizes:
    """Return the sizes to measure, smaller where shared memory or memory are short.

    An all-reduce has the large vector once a rank, the batches have it once, and what is staged comes on top:
    it may take a share of shared memory. The rivals and the copies have it a few times for each rank.
    """
    if quick:
        return BenchSizes(large=25_000, small=100, repeats=10, idle_seconds=0.2)
    volume = os.statvfs(SHARED_MEMORY)
    free = volume.f_bavail * volume.f_frsize
    share = min(free // (4 * (n_ranks + 3)), available_memory() // (4 * 8 * n_ranks))
    return BenchSizes(min(LARGE, share), SMALL, repeats=300, idle_seconds=5.0)


class Workbench(NamedTuple):
    """The ranks, crews and sizes that a section measures with."""

    n_ranks: int
    crews: dict[str, RivalProcesses]
    left_out: list[str]  # a line for each rival that does not take part
    sizes: BenchSizes
    rounds: int

    def compare(self, title: str, candidates: Mapping[str, Callable[[], float]]) -> Comparison:
        """Run candidates, which return their own seconds, in turn."""
        return compare(
            candidates,
            self.rounds,
            warmup=1,
            timer=lambda candidate: candidate(),
            seconds=SECTION_SECONDS,
            on_round=lambda number: show(f"{title}: round {max(number, 0) + 1} of {self.rounds}"),
        )

    def has_cores(self) -> bool:
        """Return whether each rank has a core to itself: the bounds hold then."""
        return self.n_ranks <= len(os.sched_getaffinity(0))


@contextmanager
def opened(
    n_ranks: int, rounds: int, quick: bool = False, wanted: Iterable[str] = tuple(RIVALS)
) -> Iterator[Workbench]:
    """Fork ranks, start crews, and end them all afterwards.

    In this order: workers are not to inherit connections of the crews, which wait for their end. Raises
    CrewLost if even the processes that copy memory do not start.
    """
    show(f"starting {n_ranks} ranks of {', '.join(['synk', *wanted])}")
    synk.fork(n_ranks, device="cpu")
    try:
        with ExitStack() as stack:
            crews, left_out = assemble(n_ranks, stack, wanted)
            if MEMCPY not in crews:
                raise CrewLost("; ".join(left_out))
            yield Workbench(n_ranks, crews, left_out, sizes(n_ranks, quick), rounds)
    finally:
        synk.close()


def show(progress: str) -> None:
    """Print progress on a terminal, in a line that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
