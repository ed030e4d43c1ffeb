"""The processes of a run: this one, which is rank 0, and the workers here and on other machines.

fork:    RunProcesses -> launch (starts workers) -> connect (rank 0 with them) -> end
restart: end -> choose, call -> launch -> connect ... -> end
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from synk.run.arrays.arena import Arena
from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.device import Devices
from synk.run.launch.fork_arguments import checked_ranks, refuse_hosts
from synk.run.launch.fork_source import ForkSource
from synk.run.launch.placement import Binding
from synk.run.launch.recovery import RunState
from synk.run.launch.start_workers import launch
from synk.run.on_machines.job import Job, Jobs
from synk.run.on_machines.machines import launch_on_machines
from synk.run.rank.connection import decide
from synk.run.rank.rank import Rank
from synk.run.session.commands import Commands
from synk.transport.comm import Communicator
from synk.transport.commands.interfaces import Peers
from synk.transport.machines.tree import PlacedMachine
from synk.transport.memory.segments import SegmentTable
from synk.transport.processes.process import Process
from synk.values.errors import SynkStateError


class RunProcesses:
    """Starts, connects and ends the processes of a run, at `synk.fork` and at each `synk.restart`.

    Attributes
    ----------
    ranks : RanksByMachine
        The number of ranks, which a restart may change.
    device : Device
        Rank 0's device.
    connection : Connection
        How arrays go from rank to rank; it stays the same after a restart.
    workers : Workers
        The present workers.
    """

    def __init__(self, devices: Devices, source: ForkSource, jobs: Jobs | None):
        self._source, self._jobs = source, jobs
        self._forked = self._devices = devices  # those of `fork`, and the present ones, which may be fewer
        self._job: Job | None = None  # the processes on other machines
        self.workers: Any = None
        self._binding: Binding | None = None
        self.connection = decide(devices, os.environ)
        self.ranks = RanksByMachine(())
        self.resize(self.call(devices.n_ranks, first=True))
        self.device = self._devices.make(0)

    def resize(self, sizes: tuple[int, ...]) -> None:
        """Set the number of ranks on each machine for the next `launch`."""
        if self._jobs is not None or sizes[0] != self._devices.n_ranks:
            self._devices = self._forked.with_ranks(sizes[0])
        self.ranks.use(sizes)

    def launch(self, state: RunState, segments: SegmentTable) -> None:
        """Start workers that begin with ``state`` on all machines, and bind this process to its CPUs."""
        started, job = (self._source, self._devices, self.connection, state), self._job
        self.workers = launch(*started) if job is None else launch_on_machines(job, *started, segments)
        self._binding = Binding(self._devices, 0)

    def connect(self, commands: Commands, arena: Arena) -> tuple[Peers, Communicator]:
        """Return rank 0's barrier with the workers, and the communicator that exchanges arrays with them."""
        peers = self.workers.peers(commands.on_death, commands.on_late)
        return peers, self.connection.communicator(peers, self.device, arena.grow)

    def end(self, seconds: float, rank: Rank) -> dict[str, Process]:
        """End the workers, which have ``seconds`` to leave; return the processes that are left, by name.

        Rank 0 drops its connections to them, and this process may use again the CPUs from before `launch`.
        """
        left: dict[str, Process] = self.workers.dismiss(seconds)
        rank.end_threads()
        rank.disconnect()
        self.leave_cpus()
        return left

    def leave_cpus(self) -> None:
        """Let this process use the CPUs again that it could use before `launch`."""
        if self._binding is not None:
            self._binding.release()

    def undo(self) -> None:
        """End the workers of a run whose start has failed."""
        if self.workers is not None:
            self.workers.dismiss(seconds=0)
        self.leave_cpus()
        self.withdraw()

    def withdraw(self) -> None:
        """Remove the environment variables that were set for the workers."""
        self.connection.withdraw(os.environ)

    # --- the workers after a restart ---------------------------------------------------------------

    def choose(self, n_parallel: Any, hosts: Any) -> int:
        """Return how many ranks this machine will have, from the arguments of `synk.restart`.

        Raises SynkStateError, TypeError or ValueError if there cannot be as many, or they cannot be forked.
        """
        n_ranks = checked_ranks(n_parallel, self.ranks.n_ranks, self._forked)
        if self._jobs is None:
            refuse_hosts(hosts)
        elif n_parallel is not None:
            raise SynkStateError('restart: n_parallel is for one machine; on several, say hosts="h1:2,h2:1"')
        self._source.check_restart(self._devices)
        return n_ranks

    def use_hosts(self, hosts: Any) -> None:
        """Use these machines at the next `call`, if any are given."""
        if self._jobs is not None and hosts is not None:
            self._jobs.use(hosts)

    def call(self, n_ranks: int, first: bool) -> tuple[int, ...]:
        """Start processes on the other machines, if any, and return the number of ranks of each machine.

        The ``first`` time all machines are used, later those that have not been lost.
        """
        if self._jobs is None:
            return (n_ranks,)
        self._job = self._jobs.call() if first else self._jobs.call_left(self.workers.lost_hosts())
        return tuple(self._job.sizes)

    def give_up(self) -> None:
        """End the processes on other machines that `call` has started."""
        if self._job is not None:
            self._job.give_up()

    # --- what the script asks of them -------------------------------------------------------------

    def placements(self) -> list[PlacedMachine]:
        """Return all machines with their ranks, for `synk.topology`."""
        return self.workers.placements(self._devices)

    def check_imported(self, modules: Collection[str], also_indirectly: bool) -> None:
        """Raise SynkStateError if the script has reloaded one of these modules since the workers imported it.

        With ``also_indirectly``, the modules that they import are checked, too.
        """
        if self.ranks.n_ranks > 1:
            self._source.imported.check(modules, also_indirectly)
