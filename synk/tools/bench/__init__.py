"""``python -m synk bench``: what synk costs on this machine, beside memcpy, Open MPI and gloo.

    main -> fork, rivals -> sections, one after the other -> tables or JSON

Every section measures its candidates in turn, round by round, so that what drifts falls on all alike;
quote the ratios. Rivals that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import synk
from synk.tools.bench import all_reduce, batches, calls, how_busy, on_hosts
from synk.tools.bench.crew import CrewLost
from synk.tools.bench.figures import Section, plain, table
from synk.tools.bench.rivals import MEMCPY, versions
from synk.tools.bench.workbench import Workbench, opened, show
from synk.transport.machines.hosts import parse_hosts

CROWD = (4, 2)  # ranks on cores: more than there are

MEASURES: tuple[Callable[[Workbench], Section], ...] = (
    all_reduce.large,
    all_reduce.small,
    calls.trivial,
    batches.gathered,
    calls.train_step,
    calls.idle_run,
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status, 1 if something broke."""
    options = parse(argv)
    try:
        run(options)
    except (CrewLost, synk.SynkError) as error:
        show("")
        print(f"synk bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        show("")
        return 130  # as shells report SIGINT
    return 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m synk bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=positive, default=2, help="of synk and of each rival; by default 2")
    add("--rounds", type=positive, default=15, help="in which everything is measured once; by default 15")
    beside = "measure calls beside a process that keeps a core busy, and no more"
    add("--busy", action="store_true", help=beside)
    add("--hosts", help="measure across these machines instead: h1,h2; see synk.fork")
    add("--interface", help="of the network between them")
    add("--json", action="store_true", help="print JSON, times in seconds")
    add("--quick", action="store_true", help="small sizes, to see that it runs; the figures mean nothing")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """Return a number that must be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def run(options: argparse.Namespace) -> None:
    """Measure everything, and print tables as they come or JSON at the end."""
    found: list[Section] = []
    if options.hosts is not None:
        run_on_hosts(options)
        return
    with opened(options.ranks, options.rounds, options.quick) as bench:
        described = introduce(bench, options)
        for measure in (calls.beside_a_busy_process,) if options.busy else MEASURES:
            found.append(finish(measure(bench), options))
    if not options.busy:
        found.append(finish(shared_cores(options), options))
    if options.json:
        print_json(described, bench.left_out, found)


def run_on_hosts(options: argparse.Namespace) -> None:
    """Measure what crosses the network, and print tables as they come or JSON at the end."""
    hosts = [host.name for host in parse_hosts(options.hosts)]
    asked = hosts, options.ranks, options.interface, options.rounds, options.quick
    with on_hosts.across(*asked) as (bench, sections):
        described = introduce(bench, options)
        found = [finish(section, options) for section in sections]
    found.append(finish(on_hosts.scaling(*asked), options))
    if options.json:
        print_json(described, bench.left_out, found)


def introduce(bench: Workbench, options: argparse.Namespace) -> how_busy.BusyMachine:
    """Describe the machine, and say who does not take part, if tables are wanted."""
    described = how_busy.describe(versions(bench.crews))
    if not options.json:
        show("")
        print("\n".join([*described.lines(), *bench.left_out]), flush=True)
    return described


def print_json(described: how_busy.BusyMachine, left_out: list[str], found: list[Section]) -> None:
    """Print all that was found as JSON."""
    whole = {"machine": described._asdict(), "left_out": left_out}
    print(json.dumps(whole | {"sections": [plain(section) for section in found]}, indent=1))


def shared_cores(options: argparse.Namespace) -> Section:
    """Measure calls of more ranks than there are cores."""
    with crowded() as n_ranks, opened(n_ranks, options.rounds, options.quick, [MEMCPY]) as crowd:
        return calls.trivial(crowd)


def finish(section: Section, options: argparse.Namespace) -> Section:
    """Print a section, if tables are wanted."""
    show("")
    if not options.json:
        print(f"\n{table(section)}", flush=True)
    return section


@contextmanager
def crowded() -> Iterator[int]:
    """Keep to few cores meanwhile; return how many ranks make a crowd there."""
    before = os.sched_getaffinity(0)
    n_ranks, n_cores = CROWD
    os.sched_setaffinity(0, sorted(before)[:n_cores])
    try:
        yield n_ranks
    finally:
        os.sched_setaffinity(0, before)
