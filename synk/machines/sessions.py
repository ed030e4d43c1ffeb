"""End all processes of a session, and remove what Open MPI has left of it in a folder.

    python sessions.py MASTER SESSION FOLDER, a child of the master: that is gone -> end_session

Run so, it starts at once and holds nothing of the master's: it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TERM_SECONDS = 1.0  # in which mpirun ends the job on all machines
LOOK_SECONDS = 0.01
ENOUGH_SECONDS = 2.0  # for the kernel to end what was killed
FAREWELL = b"end"  # to the guard: the session has ended


def end_session(session: int, folder: str, seconds: float = TERM_SECONDS) -> None:
    """Tell the leader of a session to end; kill all of it but this process if that takes longer."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(session, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while any(_members(session)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    kill_session(session)
    remove_folder(folder, session)


def kill_session(session: int) -> None:
    """Kill all processes of a session but this one, and those that they start meanwhile."""
    deadline = time.monotonic() + ENOUGH_SECONDS
    while (members := list(_members(session))) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def _members(session: int) -> Iterator[int]:
    """Yield the pids of a session's processes that have not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold anything: see proc(5).
            state, _, _, found = (folder / "stat").read_text().rpartition(") ")[2].split()[:4]
            if int(found) == session and state != "Z" and int(folder.name) != os.getpid():
                yield int(folder.name)


def remove_folder(folder: str, pid: int) -> None:
    """Remove what a killed ``mpirun``, or its daemon on another machine, has left in a folder."""
    for name in (f"*mpi.{pid}", f"prted.{pid}"):
        for left in Path(folder).glob(name):
            shutil.rmtree(left, ignore_errors=True)


def guard(parent: int, session: int, folder: str) -> None:
    """End a session when the parent of this process is gone, unless that has said farewell."""
    with contextlib.suppress(ProcessLookupError):
        life = os.pidfd_open(parent)
        told = os.getppid() == parent and 0 in select.select([0, life], [], [])[0]
        if told and os.read(0, len(FAREWELL)) == FAREWELL:
            return
    end_session(session, folder)


if __name__ == "__main__":
    # Schedulers send these to all processes of a job, and terminals.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
