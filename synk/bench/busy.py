"""Measure calls beside a process that keeps a core busy, as other programs do on most machines."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytensor.tensor as pt

import synk
from synk.bench.all_reduce import THEIRS, VERB, rivals, summed
from synk.bench.figures import Asked, Row, Section
from synk.bench.pairs import Comparison, spread
from synk.bench.rival_rank import repeat
from synk.bench.rivals import MPI
from synk.bench.workbench import Workbench

SCATTERED = "a call that scatters a Data and sums it"
BESIDE = ", beside the busy process"
TO_IDLE = "× idle"
MOST = 3  # times as long as on idle cores: two ranks and the process share two cores
BLOCKS = 10  # times the calls of other sections: long enough for all three to be scheduled several times


def beside_a_busy_process(bench: Workbench) -> Section:
    """Measure calls on idle cores and beside a busy process, in turn."""
    title = f"Calls beside a process that keeps a core busy, {bench.n_ranks} ranks"
    x = pt.fmatrix("x")
    total = synk.function([x], (x.sum(), "sum"), name="total")
    data = synk.data(np.ones((1000, 10), "float32"))
    variable = summed(bench.sizes.small, bench.n_ranks)
    times = BLOCKS * bench.sizes.repeats
    idle: dict[str, Callable[[], float]] = {
        SCATTERED: lambda: repeat(lambda: total(data, batch=slice(0, 500)), times),
        f"{VERB} of 4 kB": lambda: repeat(lambda: synk.all_reduce(variable, "sum"), times),
        **rivals(bench, bench.sizes.small, {MPI: times}),
    }
    with a_busy_process() as busy:
        crowded = {name + BESIDE: beside(idle[name], busy) for name in idle}
        comparison = bench.compare(title, idle | crowded)
    return Section(title, [row for name in idle for row in rows(comparison, name)])


def rows(comparison: Comparison, name: str) -> Iterator[Row]:
    """Yield the figures of a call on idle cores, and beside the busy process."""
    asked = None if name in THEIRS.values() else Asked(MOST, TO_IDLE)
    yield Row(name, spread(comparison.seconds[name]), "s", {TO_IDLE: comparison.ratio(name, to=name)})
    other = name + BESIDE
    yield Row(
        other, spread(comparison.seconds[other]), "s", {TO_IDLE: comparison.ratio(other, to=name)}, asked
    )


@contextmanager
def a_busy_process() -> Iterator[subprocess.Popen[bytes]]:
    """Lend a process that computes without end, but is stopped."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            busy.send_signal(signal.SIGSTOP)
            yield busy
        finally:
            busy.kill()


def beside(candidate: Callable[[], float], busy: subprocess.Popen[bytes]) -> Callable[[], float]:
    """Return a candidate that runs while ``busy`` does."""

    def run() -> float:
        busy.send_signal(signal.SIGCONT)
        try:
            return candidate()
        finally:
            busy.send_signal(signal.SIGSTOP)

    return run
