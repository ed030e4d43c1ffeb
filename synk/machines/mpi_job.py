"""Start an MPI job as a child, and end it for sure, with all that it has on this machine.

    Launch -> MpiJob (master) ... end
    master is gone -> agent, leaders -> end_own_job

An ``mpirun`` whose link to a machine is dead ignores SIGTERM; one that is killed leaves its processes and a
folder. All its processes on this machine are of one session, which has the number of its pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from synk.machines.mpirun import Launch
from synk.processes.process import PR_SET_PDEATHSIG
from synk.processes.stderr_log import StderrLog

TERM_SECONDS = 1.0  # in which mpirun ends the job on all machines
LOOK_SECONDS = 0.01
ENOUGH_SECONDS = 2.0  # for the kernel to end what was killed


class MpiJob:
    """A running ``mpirun`` with its processes.

    Attributes
    ----------
    pid : int
    log : StderrLog
        What its processes on all machines write to standard error.
    """

    def __init__(self, launch: Launch, stdout: int | None = None):
        self._launch = launch
        self._delivered = 0
        self.log = StderrLog(lambda: self._delivered, self._note_delivered)
        self._child = subprocess.Popen(
            launch.command,
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=self.log.fileno(),
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )
        self.pid = self._child.pid
        self._life = os.pidfd_open(self.pid)

    def _note_delivered(self, count: int) -> None:
        self._delivered = count

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the job ends."""
        return self._life

    def exit_code(self) -> int | None:
        """Return how ``mpirun`` has ended, None while it runs."""
        return self._child.poll()

    def end(self, seconds: float = TERM_SECONDS) -> None:
        """End the job: let ``mpirun`` do it, but kill it and all that it has here after so many seconds."""
        if self._life < 0:
            return
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        kill_session(self.pid)
        self._child.wait()
        remove_folder(self._launch.folder, self.pid)
        os.close(self._life)
        self._life = -1
        self.log.close()


def end_own_job(folder: str, seconds: float = TERM_SECONDS) -> None:
    """End the part of a job that is on this machine, which this process is of: the master is gone.

    ``folder`` is where Open MPI has made one of its own. It returns if that takes longer than ``seconds``.
    """
    job = os.getsid(0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(job, signal.SIGTERM)
    time.sleep(seconds)  # mpirun ends this process, too, unless it hangs
    kill_session(job)
    remove_folder(folder, job)


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


def _end_with_parent() -> Callable[[], None] | None:
    """Return a function for a child to call, by which the kernel tells it to end with this process.

    The kernel means the thread that makes the child; only the main one is sure to end with its process.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    tell = ctypes.CDLL(None).prctl
    return lambda: tell(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
