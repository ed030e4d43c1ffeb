"""``python -m synk bench``: measure synk on this machine, and compare it with memcpy, Open MPI and gloo.

    main -> fork, rivals -> sections, one after the other -> tables or JSON

A section is one table of the output. It measures its candidates in turn, round by round, so that a machine
which becomes slower or faster affects all of them alike; quote the ratios. Rivals, the libraries that synk is
compared with, are left out if they are not installed.
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
    """Run the command; return its exit status, 1 after an error."""
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
    """Convert an argument of the command line to an integer; raise an error if it is less than 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def run(options: argparse.Namespace) -> None:
    """Measure all sections on this machine; print each table once it is done, or JSON at the end."""
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
    """Measure all sections across machines; print each table once it is done, or JSON at the end."""
    hosts = [host.name for host in parse_hosts(options.hosts)]
    asked = hosts, options.ranks, options.interface, options.rounds, options.quick
    with on_hosts.across(*asked) as (bench, sections):
        described = introduce(bench, options)
        found = [finish(section, options) for section in sections]
    found.append(finish(on_hosts.scaling(*asked), options))
    if options.json:
        print_json(described, bench.left_out, found)


def introduce(bench: Workbench, options: argparse.Namespace) -> how_busy.BusyMachine:
    """Return a description of the machine; unless JSON is wanted, print it, and the rivals left out."""
    described = how_busy.describe(versions(bench.crews))
    if not options.json:
        show("")
        print("\n".join([*described.lines(), *bench.left_out]), flush=True)
    return described


def print_json(described: how_busy.BusyMachine, left_out: list[str], found: list[Section]) -> None:
    """Print the machine, the rivals left out, and all sections as JSON."""
    whole = {"machine": described._asdict(), "left_out": left_out}
    print(json.dumps(whole | {"sections": [plain(section) for section in found]}, indent=1))


def shared_cores(options: argparse.Namespace) -> Section:
    """Measure calls of more ranks than there are cores."""
    with crowded() as n_ranks, opened(n_ranks, options.rounds, options.quick, [MEMCPY]) as crowd:
        return calls.trivial(crowd)


def finish(section: Section, options: argparse.Namespace) -> Section:
    """Return a section; unless JSON is wanted, print it as a table first."""
    show("")
    if not options.json:
        print(f"\n{table(section)}", flush=True)
    return section


@contextmanager
def crowded() -> Iterator[int]:
    """Return a context in which this process may use two cores only; its value is a number of ranks."""
    before = os.sched_getaffinity(0)
    n_ranks, n_cores = CROWD
    os.sched_setaffinity(0, sorted(before)[:n_cores])
    try:
        yield n_ranks
    finally:
        os.sched_setaffinity(0, before)
