"""Measure the sum of a vector over the ranks, beside memcpy and beside rivals.

large: the bandwidth of memory limits it    small: the latency between ranks limits it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytensor

import synk
from synk.tools.bench.figures import Asked, Section, rows
from synk.tools.bench.pairs import Comparison, in_bytes
from synk.tools.bench.rival_rank import repeat
from synk.tools.bench.rivals import GLOO, MEMCPY, MPI
from synk.tools.bench.workbench import Workbench

ONE_COPY = "memcpy, one process"
ALL_COPY = "memcpy, all ranks at once"
VERB = "synk.all_reduce"
IN_STEP = "synk, inside a step"
THEIRS = {MPI: "Open MPI, MPI_Allreduce", GLOO: "gloo, torch.distributed.all_reduce"}

TO_SYNK = "× synk"
RATIOS = {"× memcpy": ONE_COPY, TO_SYNK: VERB}


def large(bench: Workbench) -> Section:
    """Measure the all-reduce of a vector as long as the gradient of a large network."""
    n_items, copies = bench.sizes.large, bench.crews[MEMCPY]
    title = f"All-reduce of {in_bytes(4 * n_items)} of float32, {bench.n_ranks} ranks"
    variable = summed(n_items, bench.n_ranks)
    ours: dict[str, Callable[[], float]] = {
        ONE_COPY: lambda: copies.ask_first("copy", n_items, 3),
        ALL_COPY: lambda: copies.slowest("copy", n_items, 3),
        VERB: lambda: repeat(lambda: synk.all_reduce(variable, "sum"), 3),
    }
    comparison = bench.compare(title, ours | rivals(bench, n_items, {MPI: 3, GLOO: 1}))
    times_ours = {
        THEIRS[MPI]: Asked(3, TO_SYNK, at_least=True),
        THEIRS[GLOO]: Asked(5, TO_SYNK, at_least=True),
    }
    return Section(title, rows(comparison, RATIOS, times_ours if bench.has_cores() else {}))


def small(bench: Workbench) -> Section:
    """Measure the all-reduce of a vector so short that only latency counts."""
    n_items = bench.sizes.small
    title = f"All-reduce of {in_bytes(4 * n_items)} of float32, {bench.n_ranks} ranks"
    repeats = bench.sizes.repeats
    comparison = compare(bench, title, n_items, repeats, one_copy(bench, n_items, repeats))
    asked = {VERB: Asked(40e-6), IN_STEP: Asked(15e-6)}
    return Section(title, rows(comparison, RATIOS, asked if bench.has_cores() else {}))


def one_copy(bench: Workbench, n_items: int, times: int) -> dict[str, Callable[[], float]]:
    """Return a candidate in which one process copies ``n_items``, 10 * ``times`` times."""
    return {ONE_COPY: lambda: bench.crews[MEMCPY].ask_first("copy", n_items, 10 * times)}


def compare(
    bench: Workbench, title: str, n_items: int, times: int, beside: Mapping[str, Callable[[], float]]
) -> Comparison:
    """Time an all-reduce as one command, inside a step of several commands, and by the rivals.

    Each repeats it ``times`` times. The candidates ``beside`` are timed as well.
    """
    variable = summed(n_items, bench.n_ranks)
    reduce = (synk.all_reduce, variable, "sum")
    one, eleven = synk.sequence(reduce), synk.sequence(*[reduce] * 11)
    ours: dict[str, Callable[[], float]] = {
        **beside,
        VERB: lambda: repeat(lambda: synk.all_reduce(variable, "sum"), times),
        "one": lambda: repeat(one, times),
        "eleven": lambda: repeat(eleven, max(1, times // 3)),
    }
    return inside_a_step(bench.compare(title, ours | rivals(bench, n_items, {MPI: times, GLOO: times})))


def inside_a_step(comparison: Comparison) -> Comparison:
    """Compute the time of an all-reduce inside a step: a tenth of the difference between eleven and one."""
    times = dict(comparison.seconds)
    both = zip(times.pop("one"), times.pop("eleven"), strict=True)
    # Noise may make the difference negative, and a time of zero has no ratios.
    differences = [max(eleven - one, 1e-9) / 10 for one, eleven in both]
    at = list(times).index(VERB) + 1
    entries = list(times.items())
    return Comparison(dict([*entries[:at], (IN_STEP, differences), *entries[at:]]))


def rivals(bench: Workbench, n_items: int, times: Mapping[str, int]) -> dict[str, Callable[[], float]]:
    """Return a candidate for each rival that takes part: it repeats the all-reduce ``times[rival]`` times."""
    return {
        THEIRS[name]: partial(bench.crews[name].slowest, "all_reduce", n_items, n)
        for name, n in times.items()
        if name in bench.crews
    }


def summed(n_items: int, n_ranks: int) -> Any:
    """Return a shared vector of zeros, whose sums stay finite; its all-reduce has been tried and checked."""
    variable = pytensor.shared(np.full(n_items, 1, "float32"), name="summed")
    synk.all_reduce(variable, "sum")
    if not (variable.get_value(borrow=True) == n_ranks).all():
        raise RuntimeError(f"the sum of ones over {n_ranks} ranks is not {n_ranks}")
    synk.broadcast(variable, np.zeros(n_items, "float32"))
    return variable
