"""Run a command on all hosts at the same time, and find out what keeps processes from starting there.

hosts, command -> ask -> {host: Answer} -> complaints, each with its host and a remedy
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synk.transport.machines.mpirun import IN_SLURM, more_ssh_options, on
from synk.values.errors import SynkStateError

READ_SECONDS = 0.1  # to read the output of each command, even after the deadline
SSH_FAILED = 255  # exit code of ssh if it fails itself, not the command
NEEDED = ("synk", "mpi4py", "numpy", "pytensor")
# This program imports none of the packages, as that takes seconds. It knows synk by its folder transport,
# which another project of this name does not have.
LOOK = f"""
import os, sys
from importlib.util import find_spec
missing = [name for name in {NEEDED} if not find_spec(name)]
folder = "" if "synk" in missing else os.path.dirname(find_spec("synk").origin or "")
if "synk" not in missing and not os.path.isdir(folder + "/transport"):
    missing.append("synk, in whose place is another project of this name")
sys.exit(", ".join(missing) or 0)
"""


class LoginAnswer(NamedTuple):
    """The output of a command on a machine, and its exit code."""

    code: int | None  # None where there was no answer in time
    said: str


def check_ssh() -> None:
    """Raise SynkStateError if ssh is needed and missing, ValueError for malformed options of ssh."""
    if IN_SLURM not in os.environ:
        more_ssh_options()
        if shutil.which("ssh") is None:
            raise SynkStateError("there is no ssh on this machine: install it (openssh-client)")


def ask(
    hosts: Sequence[str], command: Sequence[str], seconds: float, options: Sequence[str] = ()
) -> dict[str, LoginAnswer]:
    """Run a command on all hosts at the same time; return the answers by host, after ``seconds`` at most.

    ssh never asks for a password.
    """
    deadline = time.monotonic() + seconds
    asked = {host: _start(on(host, command, os.environ, options)) for host in hosts}
    return {host: _answer(process, deadline) for host, process in asked.items()}


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _answer(process: subprocess.Popen[str], deadline: float) -> LoginAnswer:
    try:
        # A command that ended while this process waited for others still has output to read.
        said, _ = process.communicate(timeout=max(READ_SECONDS, deadline - time.monotonic()))
        return LoginAnswer(process.returncode, said.strip())
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return LoginAnswer(None, "")


def complaints(hosts: Sequence[str], seconds: float, options: Sequence[str] = ()) -> Iterator[str]:
    """Log in to each host, and yield a text for each that lacks what a run needs, with a remedy."""
    for host, answer in ask(hosts, [sys.executable, "-c", LOOK], seconds, options).items():
        complaint = complaint_of(host, answer, seconds)
        if complaint:
            yield complaint


def complaint_of(host: str, answer: LoginAnswer, seconds: float) -> str:
    """Describe from its answer to `LOOK` what a host lacks, with a remedy; return "" if it lacks nothing."""
    last = (answer.said.splitlines() or [""])[-1]
    if answer.code is None:
        return f"host {host} does not answer within {seconds:g} s: see whether it runs, and `ssh {host} true`"
    if answer.code == SSH_FAILED:
        return f"host {host}: {last}: `ssh -o BatchMode=yes {host} true` has to work without a question"
    if answer.code in (126, 127):
        return f"host {host}: {last}: it needs the same environment at the same path, {sys.executable}"
    if answer.code:
        install = f"{sys.executable} -m pip install '.[mpi]'"
        return f"host {host} lacks {last}: run there, in the folder of synk's sources, {install}"
    return ""
