"""``python -m synk doctor``: check a machine, and say what to do about each finding.

    MachineFacts -> checks, each by itself -> findings -> report -> exit status
    examine() -> Examination, for a script or a notebook

A check that raises is reported as a finding, too, so a machine where much is missing still gets a full table.
For the same reason, the rest of synk is imported only when a check needs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from typing import TextIO

from synk.tools.doctor import compiling, cores, gpus, memory, processes, software
from synk.tools.doctor.finding import PROBLEM, WARNING, Finding, examined
from synk.tools.doctor.machine import MachineFacts
from synk.tools.doctor.rehearsal import rehearse
from synk.tools.doctor.report import Examination, as_json, table, worst

DESCRIPTION = "Check this machine, and say what to do about each finding."


def main(argv: list[str]) -> int:
    """Check this machine and print the findings; return the exit status, 1 if there is a problem."""
    parser = argparse.ArgumentParser(prog="python -m synk doctor", description=DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--hosts", help="check these machines instead, this one first: h1,h2")
    parser.add_argument("--interface", help="the network between them: eth0, say, or 10.0.0.0/24")
    options = parser.parse_args(argv)
    findings = list(findings_of(options.hosts, options.interface))
    if options.json:
        print(as_json(findings))
    else:
        print(table(findings, shutil.get_terminal_size((100, 24)).columns, wants_colours(sys.stdout)))
    return int(worst(findings) is PROBLEM)


def examine(hosts: str | None = None, interface: str | None = None) -> Examination:
    """Check this machine, as ``python -m synk doctor`` does, and return the findings.

    Parameters
    ----------
    hosts : str, optional
        Check these machines instead, this one first: ``"h1,h2"``.
    interface : str, optional
        The network between them: ``"eth0"``, say, or ``"10.0.0.0/24"``.

    Returns
    -------
    Examination
        ``print`` it, or let a notebook show it; ``findings`` are its parts, ``worst`` the highest level.
    """
    return Examination(tuple(findings_of(hosts, interface)))


def findings_of(hosts: str | None, interface: str | None) -> Iterator[Finding]:
    """Yield the findings about this machine, or about ``hosts`` and the network between them."""
    if hosts is None:
        yield from check_up(MachineFacts.here())
        return
    # Imported only here, since checks of this machine alone must not need it.
    from synk.tools.doctor.hosts import check_hosts

    yield from check_hosts(hosts, interface)


def check_up(machine: MachineFacts) -> Iterator[Finding]:
    """Yield the finding of each check."""
    for family in (software, compiling, cores, memory, processes):
        for check in family.CHECKS:
            yield examined(check, machine)
    yield from check_gpus()
    yield examined(rehearse, machine)


def check_gpus() -> Iterator[Finding]:
    """Yield the findings about GPUs, for which the driver is asked once."""
    try:
        facts = gpus.ask()
    except Exception as error:
        yield Finding(WARNING, "GPUs", str(error), "runs on cores do not need them; else see nvidia-smi")
        return
    for check in gpus.CHECKS:
        yield examined(check, facts)


def wants_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and the user has not set NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
