"""End all processes of a session, and remove what Open MPI has left of it in a folder.

    python sessions.py MASTER SESSION FOLDER, a child of the master: that is gone -> end_session
    python sessions.py prted ..., by ssh: it becomes that daemon of Open MPI, beside a guard ... kill_session

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
from typing import NoReturn

TERM_SECONDS = 1.0  # in which mpirun ends the job on all machines
LOOK_SECONDS = 0.01
ENOUGH_SECONDS = 2.0  # for the kernel to end what was killed
DAEMON = "prted"  # of Open MPI, on each other machine
DETACHED, ATTACHED = "--daemonize", "--leave-session-attached"  # the former in a session that it makes itself


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


def temporary_folder() -> str:
    """Return where Open MPI's daemons make their folders on this machine."""
    return next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")


def folder_of(session: int, folder: str) -> str:
    """Return where processes of a session leave what `remove_folder` is to remove, too."""
    return f"{folder}/mpi.{session}"


def remove_folder(folder: str, pid: int) -> None:
    """Remove what a killed ``mpirun``, or its daemon on another machine, has left in a folder."""
    for name in (f"*mpi.{pid}", f"prted.{pid}"):
        for left in Path(folder).glob(name):
            shutil.rmtree(left, ignore_errors=True)


def guard(parent: int, session: int, folder: str) -> None:
    """End a session when the parent of this process is gone, which kills it if it has ended that itself."""
    await_end(parent)
    end_session(session, folder)


def await_end(parent: int) -> None:
    """Wait until the parent of this process is gone."""
    # Schedulers send these to all processes of a job, and terminals.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        life = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    if os.getppid() == parent:
        select.select([life], [], [])


def become_guarded(daemon: list[str]) -> NoReturn:
    """Become a daemon in a session that has the number of its pid, beside a guard that tidies up after it.

    One that is killed leaves its folder, and a leader that cannot go on; one that loses ``mpirun`` while it
    starts leaves its folder, with no process of the run yet that could remove it.
    """
    with contextlib.suppress(PermissionError):  # a login's first process has such a session
        os.setsid()
    pid = os.getpid()
    if os.fork():
        os.execvp(daemon[0], [ATTACHED if word == DETACHED else word for word in daemon])
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # else the login lasts as long as the guard
        os.dup2(nothing, descriptor)
    await_end(pid)
    kill_session(pid)
    remove_folder(temporary_folder(), pid)
    os._exit(0)


if __name__ == "__main__":
    if os.path.basename(sys.argv[1]) == DAEMON:
        become_guarded(sys.argv[1:])
    guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
