"""``python -m synk bench --hosts h1,h2``: measure collectives and training steps across machines.

    across -> fork on all hosts, rivals there -> all-reduces, a step
    scaling -> fork on the first host, the first two, and so on -> a table

Rivals have as many processes as synk has ranks. In their collectives all processes talk across the network,
while synk's ranks combine their values on each machine first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import synk
from synk.tools.bench.all_reduce import IN_STEP, THEIRS, TO_SYNK, VERB, compare, rivals, summed
from synk.tools.bench.calls import ONE, THREE, check, make_steps
from synk.tools.bench.echo import NBYTES, round_trips
from synk.tools.bench.figures import Asked, Row, Section, rows
from synk.tools.bench.pairs import Spread, in_bytes, spread
from synk.tools.bench.rival_rank import repeat
from synk.tools.bench.rivals import GLOO, MPI
from synk.tools.bench.rivals_on_hosts import assemble_on_hosts
from synk.tools.bench.workbench import Workbench, sizes

ROUND_TRIP = f"{in_bytes(NBYTES)} by TCP to the last host, and back"
TO_ROUND_TRIP = "× TCP"
REPEATS = 100  # of a candidate that takes hundreds of microseconds


@contextmanager
def forked(hosts: Sequence[str], n_each: int, interface: str | None) -> Iterator[int]:
    """Return a context with ``n_each`` ranks on each host; its value is the number of all ranks."""
    try:
        yield synk.fork(n_each, device="cpu", hosts=list(hosts), interface=interface)
    finally:
        synk.close()


@contextmanager
def across(
    hosts: Sequence[str], n_each: int, interface: str | None, rounds: int, quick: bool
) -> Iterator[tuple[Workbench, Iterator[Section]]]:
    """Return a context with ranks and rivals on all hosts; its value is a workbench and its sections.

    The sections are measured one by one, as the caller iterates over them.
    """
    with forked(hosts, n_each, interface) as n_ranks, ExitStack() as stack:
        crews, left_out = assemble_on_hosts(hosts, n_each, interface, stack)
        bench = Workbench(n_ranks, crews, left_out, sizes(n_ranks, quick), rounds)
        yield bench, _sections(bench, hosts[-1])


def _sections(bench: Workbench, last: str) -> Iterator[Section]:
    yield large(bench)
    yield small(bench, last)
    yield step(bench)


def large(bench: Workbench) -> Section:
    """Measure the all-reduce of a vector as long as the gradient of a large network."""
    n_items = bench.sizes.large
    title = f"All-reduce of {in_bytes(4 * n_items)} of float32, {bench.n_ranks} ranks"
    variable = summed(n_items, bench.n_ranks)
    ours: dict[str, Callable[[], float]] = {VERB: lambda: repeat(lambda: synk.all_reduce(variable, "sum"), 1)}
    comparison = bench.compare(title, ours | rivals(bench, n_items, {MPI: 1, GLOO: 1}))
    asked = {
        THEIRS[MPI]: Asked(2, TO_SYNK, at_least=True),
        THEIRS[GLOO]: Asked(1.3, TO_SYNK, at_least=True),
    }
    return Section(title, rows(comparison, {TO_SYNK: VERB}, asked))


def small(bench: Workbench, host: str) -> Section:
    """Measure the all-reduce of a short vector, and a TCP message to another host to compare it with."""
    title = f"All-reduce of {in_bytes(4 * bench.sizes.small)} of float32, {bench.n_ranks} ranks"
    trips = {ROUND_TRIP: round_trips(bench.n_ranks, host, REPEATS)}
    comparison = compare(bench, title, bench.sizes.small, REPEATS, trips)
    asked = {IN_STEP: Asked(3, TO_ROUND_TRIP)}
    return Section(title, rows(comparison, {TO_ROUND_TRIP: ROUND_TRIP, TO_SYNK: VERB}, asked))


def step(bench: Workbench) -> Section:
    """Measure a step of linear regression, so short that most of its time is communication."""
    title = f"A short training step, {bench.n_ranks} ranks"
    one, three = make_steps()
    check(one, three)
    candidates = {ONE: lambda: repeat(one, REPEATS), THREE: lambda: repeat(three, REPEATS)}
    return Section(title, rows(bench.compare(title, candidates), {"× one command": ONE}, {}))


def scaling(hosts: Sequence[str], n_each: int, interface: str | None, rounds: int, quick: bool) -> Section:
    """Measure a large all-reduce and a short step on the first host, the first two, and so on.

    The numbers of hosts are measured one after the other and not in turn, so a machine that is busy for a
    while distorts the figures.
    """
    found: dict[str, dict[int, Spread]] = {}
    for n_hosts in range(1, len(hosts) + 1):
        with forked(hosts[:n_hosts], n_each, interface) as n_ranks:
            bench = Workbench(n_ranks, {}, [], sizes(n_ranks, quick), rounds)
            comparison = bench.compare(f"{n_hosts} hosts", _scalable(bench))
        for name, times in comparison.seconds.items():
            found.setdefault(name, {})[n_hosts] = spread(times)
    return Section(f"Scaling, {n_each} ranks on each host", list(_scaled(found)))


def _scalable(bench: Workbench) -> dict[str, Callable[[], float]]:
    variable = summed(bench.sizes.large, bench.n_ranks)
    one, three = make_steps()
    check(one, three)
    return {
        f"All-reduce of {in_bytes(4 * bench.sizes.large)}": lambda: repeat(
            lambda: synk.all_reduce(variable, "sum"), 1
        ),
        "A short training step": lambda: repeat(one, REPEATS),
    }


def _scaled(found: Mapping[str, Mapping[int, Spread]]) -> Iterator[Row]:
    for name, of_hosts in found.items():
        alone = of_hosts[1].median
        for n_hosts, value in of_hosts.items():
            times = Spread(*(seconds / alone for seconds in value))
            yield Row(f"{name}, hosts: {n_hosts}", value, "s", {"× one host": times})
