"""Start a process on every machine of a list by mpirun; the script itself stays outside of that job.

StartedJobs.call -> mpirun -> on the first machine an agent, on the others a leader (``follower``) -> Job
"""

from __future__ import annotations

import errno
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from synk.machines.agent_door import Door
from synk.machines.agent_leaders import AgentLeaders
from synk.machines.handshake import Listener, own_address
from synk.machines.hostfile import Host
from synk.machines.hosts import parse_hosts
from synk.machines.links import Watch
from synk.machines.mpi_job import MpiJob
from synk.machines.mpi_library import find_mpirun
from synk.machines.mpirun import Launch, launch, reach
from synk.machines.proof import new_token
from synk.run.job import CALL_SECONDS, Called, Job
from synk.values.errors import SynkStateError

ADDRESS, TOKEN, FOLDER = "SYNK_MASTER_ADDRESS", "SYNK_MASTER_TOKEN", "SYNK_JOB_FOLDER"  # of the environment
MORE_SSH_OPTIONS = "SYNK_SSH_OPTIONS"
HANDED_ON = ("PYTENSOR_FLAGS", "PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH")
PROGRAM = ("-m", "synk.run.follower")
LOOK_SECONDS = 0.2  # between looks whether mpirun has failed


class StartedJobs:
    """The jobs of a run, one after the other: a restart ends one and starts the next.

    ``n_here`` are ranks where neither a host nor the script says how many: those of this machine's cores.
    """

    def __init__(self, hosts: Sequence[Host], n_here: int, interface: str | None = None):
        self.hosts = tuple(hosts)
        self._n_here, self._interface = n_here, interface

    def call(self) -> Job:
        """Start one process on each machine; return the job when all have called.

        Raises SynkStateError, with what mpirun has said, if they do not.
        """
        with ExitStack() as made:
            listener = made.enter_context(closing(_listen([host.name for host in self.hosts])))
            door, token = made.enter_context(closing(Door())), new_token()
            place = ":".join(map(str, listener.address))
            told = {**door.environment, ADDRESS: place, TOKEN: token.hex(), FOLDER: tempfile.gettempdir()}
            job = MpiJob(self._launch(told))
            failed = made.enter_context(ExitStack())
            failed.callback(job.end)

            def watch() -> None:
                if job.exit_code() is not None:
                    raise SynkStateError(
                        f"mpirun has ended with exit code {job.exit_code()}:\n{job.log.tail()}"
                    )

            deadline = time.monotonic() + CALL_SECONDS
            called = [self._accept(listener, token, deadline, watch) for _ in self.hosts[1:]]
            leaders = AgentLeaders(door.open(watch), len(self.hosts))
            failed.pop_all()
        return Job(self.hosts[0].name, self.hosts[0].slots or self._n_here, called, leaders, job.end)

    def leave_out_lost(self) -> None:
        """Go on without the machines that mpirun cannot reach any more; this one stays."""
        first, *others = self.hosts
        asked = [(host, _silent(reach(host.name, os.environ, _ssh_options()))) for host in others]
        self.hosts = (first, *(host for host, process in asked if process.wait() == 0))

    def use(self, hosts: Any) -> None:
        self.hosts = parse_hosts(hosts)

    def _launch(self, told: Mapping[str, str]) -> Launch:
        kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        return launch(
            find_mpirun(),
            [host.name for host in self.hosts],
            (sys.executable, *PROGRAM),
            environment=os.environ,
            variables={**kept, **told},
            folder=tempfile.gettempdir(),
            as_root=os.geteuid() == 0,
            interface=self._interface,
            ssh_options=_ssh_options(),
        )

    def _accept(self, listener: Listener, token: bytes, deadline: float, watch: Watch) -> Called:
        """Return the next leader that calls, with the ranks that its machine is to have."""
        while True:
            watch()
            try:
                end, hello = listener.accept(token, {}, min(deadline, time.monotonic() + LOOK_SECONDS))
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                raise
            host = self.hosts[hello["machine"]]
            return end, {**hello, "host": host.name, "ranks": host.slots or hello["ranks"]}


def _listen(names: Sequence[str]) -> Listener:
    """Listen for leaders at this machine, which must be the first of the hosts."""
    first, *others = names
    try:
        return Listener(own_address(first, others))
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        raise SynkStateError(
            f"fork: the first of the hosts is {first!r}, and the script runs on {socket.gethostname()!r}: "
            "start it on the first, as sbatch does, or name this machine first"
        ) from None


def _ssh_options() -> list[str]:
    """Return the options of ssh that stand in the environment."""
    return shlex.split(os.environ.get(MORE_SSH_OPTIONS, ""))


def _silent(command: Sequence[str]) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
