"""Measure a program from its start to its first result, each time in a process of its own.

    linker.py -> run -> python first_call.py synk mlp -> JSON, when each phase ended -> linker.py

Cold means that nothing compiled is kept from before, neither by synk nor by PyTensor; warm, that this
program has run before.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import markdown_tables

from synk.tools.bench import pairs

SCRIPT = str(Path(__file__).with_name("first_call.py"))
PHASES = ("import pytensor", "import synk", "graph", "compile", "first call")
MODES = {"synk": "synk", "PyTensor NUMBA": "NUMBA", "PyTensor C": "CVM"}
SECONDS = 900  # for one process


def measure(graph: str, names: list[str], rounds: int) -> str:
    """Start processes in turn and return a table.

    Parameters
    ----------
    graph : {"mlp", "deep"}
    names : list of str
        ``"synk, warm"`` or ``"synk, cold"``, and the same of the others of `MODES`.
    rounds : int
    """
    phases: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    totals: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as kept:
        for name in names:
            if name.endswith("warm"):
                run(name, graph, kept)
        for _, name in markdown_tables.in_turn(names, rounds):
            with folder(name, kept) as caches:
                total, parts = run(name, graph, caches)
            totals[name].append(total)
            phases[name].append(parts)
    return table(graph, phases, pairs.Comparison(totals))


def folder(name: str, kept: str) -> contextlib.AbstractContextManager[str]:
    """Return the folder for compiled things: one that is kept, or an empty one."""
    return contextlib.nullcontext(kept) if name.endswith("warm") else tempfile.TemporaryDirectory()


def run(name: str, graph: str, caches: str) -> tuple[float, dict[str, float]]:
    """Run the script once; return the seconds from before its start to its end, and by phase."""
    command = [sys.executable, "-W", "ignore", SCRIPT, MODES[name.partition(",")[0]], graph]
    start = time.monotonic()  # the same clock in all processes
    done = subprocess.run(
        command, env=os.environ | compiled_in(caches), capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise SystemExit(f"{name} failed to start:\n{done.stderr}")
    ends = json.loads(done.stdout)
    return ends[-1] - start, dict(zip(PHASES, durations(start, ends), strict=True))


def compiled_in(caches: str | Path) -> dict[str, str]:
    """Return variables of the environment by which all that is compiled lies below a folder."""
    return {
        "SYNK_CACHE": f"{caches}/synk",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor,{os.environ.get('PYTENSOR_FLAGS', '')}",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/torch",
    }


def durations(start: float, ends: list[float]) -> Iterator[float]:
    """Yield how long each phase took, the first one from the start of the process."""
    for begin, end in zip([start, *ends], ends, strict=False):
        yield end - begin


def table(graph: str, phases: dict[str, list[dict[str, float]]], totals: pairs.Comparison) -> str:
    """Return a table of the phases' medians beside the whole."""
    header = [f"start of {graph}", *PHASES, "all", f"× time of {totals.reference} (quartiles)"]
    rows = []
    for name, median, ratio in markdown_tables.rows(totals):
        parts = [statistics.median(parts[phase] for parts in phases[name]) for phase in PHASES]
        rows.append([name, *map(pairs.in_units, parts), median, ratio])
    return markdown_tables.aligned(header, rows)
