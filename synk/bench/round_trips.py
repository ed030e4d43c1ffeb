"""What a call costs that has nothing to do, and a run that has nothing to do."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytensor.tensor as pt

import synk
from synk.bench.all_reduce import against
from synk.bench.figures import Asked, Row, Section, once, rows
from synk.bench.rival_rank import repeat
from synk.bench.rivals import MEMCPY
from synk.bench.workbench import Workbench, show

SOCKET = "a word through a Unix socket, and back"
EMPTY = "synk.function([], [])"
SCATTERED = "one that scatters a Data and sums a number"

IDLE_SECONDS = 30e-6  # asked of a call whose ranks have a core each
CROWDED_SECONDS = 1e-3  # asked of one whose ranks share cores


def calls(bench: Workbench) -> Section:
    """Measure the round trip of a call; the ranks may have cores of their own, or share them."""
    cores = len(os.sched_getaffinity(0))
    title = f"A call with trivial work, {bench.n_ranks} ranks on {min(bench.n_ranks, cores)} cores"
    empty = synk.function([], [], name="empty")
    x = pt.fmatrix("x")
    count = synk.function([x], (x.shape[0], "sum"), name="count")
    data = synk.data(np.ones((100, 4), "float32"))
    times = bench.sizes.repeats if bench.has_cores() else max(1, bench.sizes.repeats // 6)
    comparison = bench.compare(
        title,
        {
            SOCKET: lambda: repeat(lambda: bench.crews[MEMCPY].ask_first("ping"), times),
            EMPTY: lambda: repeat(empty, times),
            SCATTERED: lambda: repeat(lambda: count(data), times),
        },
    )
    asked = Asked(IDLE_SECONDS if bench.has_cores() else CROWDED_SECONDS)
    columns = against(comparison, {"× socket": SOCKET})
    return Section(title, rows(comparison, columns, {EMPTY: asked, SCATTERED: asked}))


def idle(bench: Workbench) -> Section:
    """Measure the processor time that all ranks together take while the script does something else."""
    seconds = bench.sizes.idle_seconds
    title = f"An idle run, {bench.n_ranks} ranks"
    show(f"{title}: {seconds:g} s")
    before = cpu_seconds(synk.pids())
    time.sleep(seconds)
    share = 100 * (cpu_seconds(synk.pids()) - before) / seconds
    name = f"processor time of all ranks over {seconds:g} s"
    return Section(title, [Row(name, once(share), "% of a core", {}, Asked(1))])


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that processes have taken, in user and in system mode, in seconds."""
    ticks = 0
    for pid in pids:
        # The name of a process, in brackets, may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, fields 14 and 15 of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")
