"""Start a process on every machine of a list by mpirun; the script itself is no process of this MPI job.

StartedJobs.call -> mpirun -> ``follower``: an agent on the first machine, a leader on the others -> Job
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from synk.run.on_machines.job import CALL_SECONDS, Job, LeaderConnection, hang_up
from synk.run.on_machines.leader_calls import link_leaders
from synk.transport.machines.agent_listener import AgentListener
from synk.transport.machines.agent_reduce import AgentReduce
from synk.transport.machines.handshake import Listener
from synk.transport.machines.hostfile import Host
from synk.transport.machines.hosts import check_known, parse_hosts
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.links import Watch
from synk.transport.machines.logins import ask, check_ssh, complaints
from synk.transport.machines.mpi_job import MpiJob
from synk.transport.machines.mpi_library import find_mpirun
from synk.transport.machines.mpirun import MpirunCommand, launch, more_ssh_options
from synk.transport.machines.networks import own_address
from synk.transport.machines.proof import new_token
from synk.values.errors import SynkStateError

# Environment variables by which the processes of the job learn how to reach the master.
ADDRESS, TOKEN, FOLDER = "SYNK_MASTER_ADDRESS", "SYNK_MASTER_TOKEN", "SYNK_JOB_FOLDER"
HANDED_ON = (  # variables of this process's environment that the processes of the job get, too
    *("PYTENSOR_FLAGS", "PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "CC"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SYNK_CACHE", "SYNK_CACHE_LIMIT"),
)
PROGRAM = Path(__file__).with_name("follower.py")
ALIVE_SECONDS = 10.0  # how long a machine has to answer by ssh; a login takes some seconds on a busy one
LOST_SECONDS = 1  # how long a machine that seems lost has to accept a connection; busy ones do so at once
DIAGNOSIS_SECONDS = 6.0  # how long to look for the reason of a failed start


class JobEnded(SynkStateError):
    """The job has ended before all of its processes have called."""


class StartedJobs:
    """Starts the jobs of a run, one after the other: a restart ends one job and starts the next.

    ``n`` is the number of ranks on a host for which ``hosts`` gives none, by default one for each core;
    ``n_here`` is that number for this machine.
    """

    def __init__(self, hosts: Any, n: int | None, n_here: int, interface: str | None = None):
        self._n, self._n_here, self._interface = n, n_here, interface
        self.hosts = parse_hosts(hosts, n)
        self._check()

    def _check(self) -> None:
        """Raise if mpirun, a host or ssh is missing; find the address at which the master listens."""
        find_mpirun()
        check_known(self.hosts)
        first, *others = [host.name for host in self.hosts]
        if others:
            check_ssh()
        self._address = own_address(first, others, self._interface)

    def call(self) -> Job:
        """Start one process on each machine; return the job when all have called.

        Raises SynkStateError if they do not call; the message says what is wrong on which host.
        """
        try:
            return self._call()
        except JobEnded as ended:
            others = [host.name for host in self.hosts[1:]]
            found = complaints(others, DIAGNOSIS_SECONDS, more_ssh_options())
            said = ["the ranks on other hosts do not start", *found, *ended.args]
            raise SynkStateError("\n".join(said)) from None

    def _call(self) -> Job:
        """Do as `call`, without a diagnosis if the job ends early: JobEnded is raised then."""
        with ExitStack() as made:
            listener = made.enter_context(closing(Listener(self._address)))
            for_agent, token = made.enter_context(closing(AgentListener())), new_token()
            place = ":".join(map(str, listener.address))
            access = {
                **for_agent.environment,
                ADDRESS: place,
                TOKEN: token.hex(),
                FOLDER: tempfile.gettempdir(),
            }
            job = MpiJob(self._launch(access))
            failed = made.enter_context(ExitStack())
            failed.callback(job.end)

            deadline = time.monotonic() + CALL_SECONDS

            def watch() -> None:
                if job.exit_code() is not None:
                    raise JobEnded(f"mpirun has ended with exit code {job.exit_code()}:\n{job.log.tail()}")

            def watch_agent() -> None:
                watch()
                if time.monotonic() >= deadline:
                    raise SynkStateError(f"the agent of rank 0 has not come within {CALL_SECONDS:g} s")

            called: list[LeaderConnection] = []
            failed.callback(hang_up, called)
            self._all_called(called, listener, token, deadline, watch)
            reduction = AgentReduce(for_agent.accept(watch_agent))
            failed.callback(reduction.close)
            leaders = LinkedLeaders(link_leaders(called, listener, token, watch), reduction)
            failed.pop_all()
        n_here = self.hosts[0].slots or self._n_here
        name = self.hosts[0].name
        return Job(name, n_here, called, leaders, job.end, watch, job.log.deliver, [job.log])

    def call_left(self, lost: Sequence[str]) -> Job:
        """Return a job of the machines that are left: all but those ``lost`` ones that do not answer by ssh.

        If the processes do not all call, other machines may have been lost as well, so all are asked.
        """
        self._leave_out(lost, [f"-o ConnectTimeout={LOST_SECONDS}"])
        try:
            return self._call()
        except SynkStateError:
            self._leave_out([host.name for host in self.hosts[1:]])
            return self.call()

    def _leave_out(self, hosts: Sequence[str], options: Sequence[str] = ()) -> None:
        """Ask these hosts by ssh whether they run, and drop those from the list that do not answer."""
        answers = ask(hosts, ["true"], ALIVE_SECONDS, [*options, *more_ssh_options()])
        self.hosts = tuple(
            host for host in self.hosts if host.name not in answers or answers[host.name].code == 0
        )

    def use(self, hosts: Any) -> None:
        before = self.hosts
        self.hosts = tuple(Host(host.name, host.slots or self._n) for host in parse_hosts(hosts))
        try:
            self._check()
        except BaseException:
            self.hosts = before
            raise

    def _launch(self, access: Mapping[str, str]) -> MpirunCommand:
        """Start mpirun; ``access`` are the environment variables by which its processes reach the master."""
        kept = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        return launch(
            find_mpirun(),
            [host.name for host in self.hosts],
            (sys.executable, str(PROGRAM)),
            environment=os.environ,
            variables={**kept, **access},
            folder=tempfile.gettempdir(),
            as_root=os.geteuid() == 0,
            interface=self._interface,
            ssh_options=more_ssh_options(),
        )

    def _all_called(
        self, called: list[LeaderConnection], listener: Listener, token: bytes, deadline: float, watch: Watch
    ) -> None:
        """Wait until all leaders have called, and add each to ``called``, with the ranks for its machine."""
        while len(called) < len(self.hosts) - 1:
            try:
                end, hello = listener.accept(token, {}, deadline, watch)
            except TimeoutError as error:
                there = {0, *(hello["machine"] for _, hello in called)}
                silent = [host.name for number, host in enumerate(self.hosts) if number not in there]
                raise SynkStateError(
                    f"host {', '.join(silent)} has not called within {CALL_SECONDS:g} s: a firewall may be "
                    f"between, or the network is another, which interface= chooses ({error})"
                ) from None
            called.append((end, hello))
        # Matched by names if all names are known: a batch system may have started them in another order.
        by_name = {host.name: host for host in self.hosts[1:]}
        are_known = {hello["host"] for _, hello in called} == by_name.keys()
        for k, (end, hello) in enumerate(called):
            host = by_name[hello["host"]] if are_known else self.hosts[hello["machine"]]
            called[k] = end, {**hello, "host": host.name, "ranks": host.slots or hello["ranks"]}
