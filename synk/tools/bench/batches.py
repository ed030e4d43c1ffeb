"""Measure how fast ranks get the rows of a batch, compared with memcpy of as many bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt

import synk
from synk.tools.bench.all_reduce import ALL_COPY, ONE_COPY
from synk.tools.bench.figures import Asked, Section, rows
from synk.tools.bench.pairs import in_bytes
from synk.tools.bench.rival_rank import repeat
from synk.tools.bench.rivals import MEMCPY
from synk.tools.bench.workbench import Workbench

N_COLUMNS = 1_000  # float32: rows of 4 kB
SCRIPT_SECONDS = 0.05  # the script does something else for so long, while ranks gather rows
BANDWIDTH = "× bandwidth of memcpy"


def gathered(bench: Workbench) -> Section:
    """Select half of the rows, in order, in random places, and in random order.

    The program reads only the shape of its rows, so the time is that of getting the rows.
    """
    data, copies = data_set(bench.sizes.large // N_COLUMNS), bench.crews[MEMCPY]
    n_rows = len(data) // 2
    n_items = n_rows * N_COLUMNS
    title = f"Rows of a batch, {in_bytes(4 * n_items)} in rows of 4 kB, {bench.n_ranks} ranks"
    x = pt.fmatrix("x")
    count = synk.function([x], (x.shape[0], "sum"), name="count")
    candidates: dict[str, Callable[[], float]] = {
        ONE_COPY: lambda: copies.ask_first("copy", n_items, 3),
        ALL_COPY: lambda: copies.slowest("copy", n_items // bench.n_ranks, 3),
    }
    for name, batch in selections(len(data), n_rows).items():
        if count(data, batch=batch) != n_rows:
            raise RuntimeError(f"{name} does not select {n_rows} rows")
        candidates[name] = partial(repeat, partial(count, data, batch=batch), 3)
    candidates["the same, gathered ahead"] = partial(ahead, partial(count, data), batch)
    comparison = bench.compare(title, candidates)
    found = rows(comparison, {}, {"batch=slice": Asked(0.8, BANDWIDTH, at_least=True)})
    bandwidths = [{BANDWIDTH: comparison.ratio(ONE_COPY, to=row.name)} for row in found]
    return Section(title, [row._replace(ratios=ratio) for row, ratio in zip(found, bandwidths, strict=True)])


def ahead(count: Callable[..., Any], batch: Any) -> float:
    """Return the seconds of a call whose rows were announced by the call before, some time earlier."""
    count(batch=1, next_batch=batch)
    time.sleep(SCRIPT_SECONDS)
    start = time.perf_counter()
    count(batch=batch)
    return time.perf_counter() - start


def data_set(n_rows: int) -> synk.Data:
    """Return Data whose rows have all been written once, so that their pages are allocated."""
    data = synk.data(shape=(n_rows, N_COLUMNS), dtype="float32")
    data[:] = 1
    return data


def selections(length: int, n_rows: int) -> dict[str, Any]:
    """Return ways to select ``n_rows`` of ``length`` rows."""
    shuffled = np.random.default_rng(0).permutation(length)[:n_rows]
    start = (length - n_rows) // 2
    return {
        "batch=slice": slice(start, start + n_rows),
        "batch=indices, sorted": np.sort(shuffled),
        "batch=indices, shuffled": shuffled,
    }
