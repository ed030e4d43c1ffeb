"""Start an MPI job as a child, and end it for sure, with all that it has on this machine.

    MpirunCommand -> MpiJob (master), and a guard beside it ... end
    master is gone -> the guard, agent and leaders -> end_session
    a process of the job: limited_start, join_own_job ... end_own_job

An ``mpirun`` whose link to a machine is dead ignores SIGTERM, and so does one that is still starting; one
that is killed leaves its processes and a folder. All its processes on this machine are of one session, which
has the number of its pid.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from synk.transport.machines import sessions
from synk.transport.machines.mpi_library import load_mpi
from synk.transport.machines.mpirun import MpirunCommand
from synk.transport.machines.sessions import (
    ENOUGH_SECONDS,
    TERM_SECONDS,
    end_session,
    folder_of,
    kill_session,
    remove_folder,
)
from synk.transport.processes.stderr_log import StderrLog
from synk.values.errors import SynkStateError

# Open MPI kills a process of its own, such as this, after a second, and then tidies up: both at the same
# moment would leave its folder.
PATIENCE_SECONDS = 3.0
JOIN_SECONDS = 60.0  # far more than a start takes that the master waits for
SIZE, TEMPORARY = "OMPI_COMM_WORLD_SIZE", "TMPDIR"  # of the environment


class MpiJob:
    """A running ``mpirun`` with its processes.

    Attributes
    ----------
    pid : int
    log : StderrLog
        What its processes on all machines write to standard error.
    """

    def __init__(self, launch: MpirunCommand, stdout: int | None = None):
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
        )
        self.pid = self._child.pid
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", sessions.__file__, str(os.getpid()), str(self.pid), launch.folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._has_ended = False

    def _note_delivered(self, count: int) -> None:
        self._delivered = count

    def exit_code(self) -> int | None:
        """Return how ``mpirun`` has ended, None while it runs."""
        return self._child.poll()

    def end(self, seconds: float = TERM_SECONDS) -> None:
        """End the job: let ``mpirun`` do it, but kill it and all that it has here after so many seconds."""
        if self._has_ended:
            return
        self._child.terminate()
        _wait_for(self._child, seconds)
        kill_session(self.pid)
        _wait_for(self._child, ENOUGH_SECONDS)
        remove_folder(self._launch.folder, self.pid)
        self._guard.kill()
        _wait_for(self._guard, ENOUGH_SECONDS)
        self._has_ended = True
        self.log.close()


def _wait_for(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so long at most for the end of a process."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


@contextlib.contextmanager
def limited_start(folder: str, seconds: float = JOIN_SECONDS) -> Iterator[None]:
    """Give a block so many seconds, in which this process joins its job; then end that on this machine.

    MPI waits for good where a machine is cut off meanwhile, and so does the daemon. Nothing else runs in this
    process while MPI waits, so a child looks at the clock.
    """
    lives, end = os.pipe()
    watcher = os.fork()
    if not watcher:
        try:
            os.close(end)
            if not select.select([lives], [], [], seconds)[0]:
                end_own_job(folder)
        finally:
            os._exit(0)
    os.close(lives)
    try:
        yield
    finally:
        os.close(end)
        os.waitpid(watcher, 0)


def join_own_job(folder: str) -> Any:
    """Initialise MPI; return the communicator of all processes of the job that this process is of.

    Raises SynkStateError if the daemon of this machine is gone: MPI then makes a job of this process alone,
    with a folder of its own. It is made within that of the session, so that it goes with it.
    """
    before = os.environ.get(TEMPORARY)
    os.environ[TEMPORARY] = folder_of(os.getsid(0), folder)
    try:
        world = load_mpi().COMM_WORLD
    finally:
        if before is None:
            del os.environ[TEMPORARY]
        else:
            os.environ[TEMPORARY] = before
    if world.size != int(os.environ[SIZE]):
        raise SynkStateError("the daemon of Open MPI has ended on this machine")
    return world


def end_own_job(folder: str) -> None:
    """End the part of a job that is on this machine, which this process is of: the master is gone.

    ``folder`` is where Open MPI has made one of its own.
    """
    end_session(os.getsid(0), folder, PATIENCE_SECONDS)
