"""Fork the ranks, start the rivals, and choose the sizes that every section measures with.

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
SECTION_SECONDS = 10.0  # after so long a section starts no further round, if it has had `LEAST_ROUNDS`
SHARED_MEMORY = "/dev/shm"


class BenchSizes(NamedTuple):
    """The lengths of vectors, numbers of repeats and seconds that sections use."""

    large: int  # float32 items
    small: int
    repeats: int  # of something that takes microseconds, for one time
    idle_seconds: float


def sizes(n_ranks: int, quick: bool = False) -> BenchSizes:
    """Return the sizes to measure, smaller ones if shared memory or memory is short.

    Shared memory holds the large vector once for each rank, once for the batches, and in staging buffers. The
    processes of rivals hold it a few times each.
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
        """Run candidates in turn; each of them returns its own seconds."""
        return compare(
            candidates,
            self.rounds,
            warmup=1,
            timer=lambda candidate: candidate(),
            seconds=SECTION_SECONDS,
            on_round=lambda number: show(f"{title}: round {max(number, 0) + 1} of {self.rounds}"),
        )

    def has_cores(self) -> bool:
        """Return whether each rank has a core to itself, as most bounds assume."""
        return self.n_ranks <= len(os.sched_getaffinity(0))


@contextmanager
def opened(
    n_ranks: int, rounds: int, quick: bool = False, wanted: Iterable[str] = tuple(RIVALS)
) -> Iterator[Workbench]:
    """Return a context with forked ranks and started crews, which ends all of them.

    Ranks are forked first, so that workers do not inherit the crews' connections: a crew ends when its
    connections are closed. Raise CrewLost if even the processes that copy memory do not start.
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
