"""Measure calls with little work on idle cores and beside a busy process, a training step, an idle run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.tools.bench.all_reduce import THEIRS, VERB, rivals, summed
from synk.tools.bench.figures import Asked, Row, Section, rows
from synk.tools.bench.pairs import Comparison, spread
from synk.tools.bench.rival_rank import repeat
from synk.tools.bench.rivals import MEMCPY, MPI
from synk.tools.bench.workbench import Workbench, show

SOCKET = "a word through a Unix socket, and back"
EMPTY = "synk.function([], [])"
SCATTERED = "one that scatters a Data and sums a number"

IDLE_SECONDS = 30e-6  # bound on a call whose ranks have a core each
CROWDED_SECONDS = 1e-3  # bound on a call whose ranks share cores

SUMMED = "a call that scatters a Data and sums it"
BESIDE = ", beside the busy process"
TO_IDLE = "× idle"
MOST = 3  # bound on the ratio to idle cores: two ranks and the busy process share two cores
BLOCKS = 10  # times the calls of other sections: long enough for all three to be scheduled several times

N_ROWS, N_FEATURES = 256, 1_000
ONE = "gradient, all-reduce, update: one command"
THREE = "the same as three commands"


def trivial(bench: Workbench) -> Section:
    """Measure the round trip of a call that computes nothing; the ranks may share cores."""
    cores = len(os.sched_getaffinity(0))
    title = f"A call with trivial work, {bench.n_ranks} ranks on {min(bench.n_ranks, cores)} cores"
    empty = synk.function([], [], name="empty")
    x = pt.fmatrix("x")
    count = synk.function([x], (x.shape[0], "sum"), name="count")
    data = synk.data(np.ones((100, 4), "float32"))
    times = bench.sizes.repeats if bench.has_cores() else max(1, bench.sizes.repeats // 6)
    candidates = {
        SOCKET: lambda: repeat(lambda: bench.crews[MEMCPY].ask_first("ping"), times),
        EMPTY: lambda: repeat(empty, times),
        SCATTERED: lambda: repeat(lambda: count(data), times),
    }
    comparison = bench.compare(title, candidates)
    asked = Asked(IDLE_SECONDS if bench.has_cores() else CROWDED_SECONDS)
    return Section(title, rows(comparison, {"× socket": SOCKET}, {EMPTY: asked, SCATTERED: asked}))


def beside_a_busy_process(bench: Workbench) -> Section:
    """Measure calls on idle cores and beside a busy process, in turn."""
    title = f"Calls beside a process that keeps a core busy, {bench.n_ranks} ranks"
    x = pt.fmatrix("x")
    total = synk.function([x], (x.sum(), "sum"), name="total")
    data = synk.data(np.ones((1000, 10), "float32"))
    variable = summed(bench.sizes.small, bench.n_ranks)
    times = BLOCKS * bench.sizes.repeats
    idle: dict[str, Callable[[], float]] = {
        SUMMED: lambda: repeat(lambda: total(data, batch=slice(0, 500)), times),
        f"{VERB} of 4 kB": lambda: repeat(lambda: synk.all_reduce(variable, "sum"), times),
        **rivals(bench, bench.sizes.small, {MPI: times}),
    }
    with a_busy_process() as busy:
        crowded = {name + BESIDE: beside(idle[name], busy) for name in idle}
        comparison = bench.compare(title, idle | crowded)
    return Section(title, [row for name in idle for row in beside_rows(comparison, name)])


def beside_rows(comparison: Comparison, name: str) -> Iterator[Row]:
    """Yield the figures of a call on idle cores, and beside the busy process."""
    asked = None if name in THEIRS.values() else Asked(MOST, TO_IDLE)
    yield Row(name, spread(comparison.seconds[name]), "s", {TO_IDLE: comparison.ratio(name, to=name)})
    other = name + BESIDE
    yield Row(
        other, spread(comparison.seconds[other]), "s", {TO_IDLE: comparison.ratio(other, to=name)}, asked
    )


@contextmanager
def a_busy_process() -> Iterator[subprocess.Popen[bytes]]:
    """Return a context with a process that would keep a core busy, but is stopped by SIGSTOP at first."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            busy.send_signal(signal.SIGSTOP)
            yield busy
        finally:
            busy.kill()


def beside(candidate: Callable[[], float], busy: subprocess.Popen[bytes]) -> Callable[[], float]:
    """Return the candidate, changed so that the process ``busy`` runs during it."""

    def run() -> float:
        busy.send_signal(signal.SIGCONT)
        try:
            return candidate()
        finally:
            busy.send_signal(signal.SIGSTOP)

    return run


def train_step(bench: Workbench) -> Section:
    """Measure a step of linear regression, so short that most of its time is communication."""
    title = f"A training step, {N_ROWS} rows of {N_FEATURES:,} features, {bench.n_ranks} ranks"
    together, apart = make_steps()
    check(together, apart)
    times = max(1, bench.sizes.repeats // 3)
    candidates = {ONE: lambda: repeat(together, times), THREE: lambda: repeat(apart, times)}
    return Section(title, rows(bench.compare(title, candidates), {"× one command": ONE}, {}))


def make_steps() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return two functions that make a training step, as one command and as three; both return the loss."""
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.fvector("y")
    weights = pytensor.shared(np.zeros(N_FEATURES, "float32"), name="weights")
    flat = pytensor.shared(np.zeros(N_FEATURES, "float32"), name="gradient")
    loss = ((x @ weights - y) ** 2).mean()
    # With "avg" each rank keeps its own gradient, so that there is an all-reduce to measure.
    own = (flat, pytensor.grad(loss, weights), "avg")
    gradient = synk.function([x, y], loss, updates=[own], name="gradient")
    update = synk.function([], updates=[(weights, weights - np.float32(1e-4) * flat)], name="update")
    step = synk.sequence(gradient, (synk.all_reduce, flat), update, name="step")
    shapes = (N_ROWS, N_FEATURES), (N_ROWS,)
    inputs = [synk.data(rng.normal(size=shape).astype("float32")) for shape in shapes]

    def apart() -> Any:
        found = gradient(*inputs)
        synk.all_reduce(flat)
        update()
        return found

    return lambda: step(*inputs), apart


def check(together: Callable[[], Any], apart: Callable[[], Any]) -> None:
    """Raise RuntimeError unless the loss falls with each step of either function."""
    losses = [float(step()) for step in (together, apart, together, apart)]
    if sorted(losses, reverse=True) != losses:
        raise RuntimeError(f"the loss does not fall: {losses}")


def idle_run(bench: Workbench) -> Section:
    """Measure the processor time of all ranks together while the script sleeps."""
    seconds = bench.sizes.idle_seconds
    title = f"An idle run, {bench.n_ranks} ranks"
    show(f"{title}: {seconds:g} s")
    before = cpu_seconds(synk.pids())
    time.sleep(seconds)
    share = 100 * (cpu_seconds(synk.pids()) - before) / seconds
    name = f"processor time of all ranks over {seconds:g} s"
    return Section(title, [Row(name, spread([share]), "% of a core", {}, Asked(1))])


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that processes have taken, in user and in system mode, in seconds."""
    ticks = 0
    for pid in pids:
        # The name of a process, in brackets, may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")
