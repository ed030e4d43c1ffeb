"""Checks of all machines of a run: each is probed by ssh, at the same time, and compared with this one.

hosts -> a script that runs on each -> facts -> findings, each with the name of its host
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from synk.tools.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, grade
from synk.tools.doctor.machine import MIB, size
from synk.transport.machines.hosts import check_known, parse_hosts
from synk.transport.machines.logins import LoginAnswer, ask, check_ssh, complaint_of
from synk.transport.machines.mpirun import more_ssh_options
from synk.transport.machines.networks import own_address

SECONDS = 15.0  # for all hosts together
CLOCK_SECONDS = 5.0  # by which clocks may differ, beside the time that an answer by ssh takes
LITTLE = 256 * MIB  # of shared memory
PACKAGES = ("synk", "pytensor", "numpy", "mpi4py", "cloudpickle")

# Runs on each host, with nothing but Python; prints one line of JSON.
PROBE = f"""
import json, os, re, socket, sys, time
from importlib import metadata
from importlib.util import find_spec

def version(name):
    if name == "synk":  # of the package that is imported, however it is installed
        return synk_version()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

def synk_version():
    found = find_spec("synk")
    text = open(found.origin).read() if found and found.origin else ""
    said = re.search('^__version__ = "(.*)"$', text, re.MULTILINE)
    return said and said.group(1)

def reaches(address):
    try:
        socket.create_connection(address, timeout=3).close()
        return ""
    except OSError as error:
        return str(error)

def kind():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine

shm = os.statvfs("/dev/shm")
print(json.dumps(dict(
    versions=dict(python="%d.%d" % sys.version_info[:2], **{{name: version(name) for name in {PACKAGES}}}),
    clock=time.time(),
    shm=[shm.f_bavail * shm.f_frsize, shm.f_blocks * shm.f_frsize],
    cores=len(os.sched_getaffinity(0)),
    processor=kind(),
    refused=reaches((sys.argv[1], int(sys.argv[2]))),
)))
"""


def check_hosts(hosts: str, interface: str | None) -> Iterator[Finding]:
    """Yield findings about each host; for a host that cannot be probed, the reason."""
    try:
        names = [host.name for host in parse_hosts(hosts)]
        check_known(parse_hosts(hosts))
        if len(names) > 1:
            check_ssh()
        address = own_address(names[0], names[1:], interface)
    except Exception as error:
        yield Finding(PROBLEM, "hosts", str(error))
        return
    with closing(socket.create_server((address, 0), backlog=len(names))) as listener:
        place = listener.getsockname()
        mine, *others = asked(names, place)
    here = facts(mine[1])
    yield from of_host(names[0], here, here)
    for name, answer in others:
        complaint = complaint_of(name, answer, SECONDS)
        if complaint:
            yield Finding(PROBLEM, f"{name}: ssh", complaint)
        else:
            yield Finding(OK, f"{name}: ssh", "logs in without a question")
            yield from of_host(name, facts(answer), here)


def asked(names: list[str], place: tuple[str, int]) -> list[tuple[str, LoginAnswer]]:
    """Run the probe on all hosts, of which the first is this one; return each name with its answer."""
    command = [sys.executable, "-c", PROBE, place[0], str(place[1])]
    here = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    answers = ask(names[1:], command, SECONDS, more_ssh_options())
    return [(names[0], LoginAnswer(here.returncode, here.stdout + here.stderr)), *answers.items()]


def facts(answer: LoginAnswer) -> Mapping[str, Any]:
    """Return the facts in the answer of a probe, and the time at which they were read."""
    return {**json.loads(answer.said.splitlines()[-1]), "read": time.time()}


def of_host(name: str, found: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about one host, compared with those about this one."""
    yield _versions(name, found["versions"], here["versions"])
    yield _clock(name, found)
    free, total = found["shm"]
    yield grade(
        f"{name}: /dev/shm",
        f"{size(free)} of {size(total)} free",
        (free < LITTLE, WARNING, "there: mount -o remount,size=8g /dev/shm; of a container --shm-size=8g"),
    )
    yield grade(
        f"{name}: cores",
        f"{found['cores']}, {found['processor']}",
        (
            found["processor"] != here["processor"],
            NOTE,
            "processors of other kinds round differently: what ranks compute may differ in the last bits",
        ),
    )
    yield grade(
        f"{name}: port",
        found["refused"] or "reaches a port of the first host",
        (bool(found["refused"]), PROBLEM, "a firewall is between, or the network is another: --interface"),
    )


def _versions(name: str, found: Mapping[str, Any], here: Mapping[str, Any]) -> Finding:
    other = {package: version for package, version in found.items() if version != here[package]}
    missing = [package for package, version in found.items() if version is None]
    listed = ", ".join(f"{package} {version}" for package, version in (other or found).items())
    return grade(
        f"{name}: versions",
        listed,
        (bool(missing), PROBLEM, f"on {name}, in synk's sources: {sys.executable} -m pip install '.[mpi]'"),
        (bool(other), PROBLEM, "install the same versions as on the first host"),
    )


def _clock(name: str, found: Mapping[str, Any]) -> Finding:
    late = found["read"] - found["clock"]
    away = abs(late) > CLOCK_SECONDS + SECONDS
    said = f"{abs(late):.0f} s {'behind' if late > 0 else 'ahead of'} the first host"
    return grade(
        f"{name}: clock",
        said if away else "that of the first host, as far as ssh can tell",
        (away, WARNING, "runs do not need clocks, logs and checkpoints do: start an NTP client"),
    )
