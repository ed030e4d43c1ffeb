"""A script that mpirun or srun has started on every machine: one run, in which leaders follow the first.

fork -> joined_world -> on the first machine: call -> Job; on the others: follow, until the script has ended
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any, NoReturn

from synk.machines.handshake import Listener, connect, own_address
from synk.machines.hosts import under_mpi
from synk.machines.mpi_leaders import MpiLeaders
from synk.machines.mpi_library import load_mpi
from synk.machines.proof import new_token
from synk.run.job import CALL_SECONDS, Job
from synk.run.leader import lead
from synk.transport.links import LeaderEnd
from synk.values.errors import SynkStateError

LAUNCHED = "mpirun or srun has started this script on its machines"
NEXT_RUN_SECONDS = 1e6  # for the script to fork again, or to end


class JoinedWorld:
    """The MPI job that has started this script on every machine, for all its runs, one after the other.

    On the first machine it listens until the script ends, so that leaders call again for the next run, or
    after a restart; on the others `follow` does not return. ``n_here`` are the ranks of this machine in the
    next run.
    """

    def __init__(self, world: Any):
        self.is_first, self.n_here = world.rank == 0, 1
        self._number, self._n_machines = world.rank, world.size
        name, *others = world.allgather(socket.gethostname())
        self._listener = Listener(own_address(name, others)) if self.is_first else None
        told = (self._listener.address, new_token()) if self._listener else None
        self._address, self._token = world.bcast(told)
        self._world = world

    def call(self) -> Job:
        """Return the leaders of the other machines, once all have called."""
        assert self._listener is not None, "leaders call the first machine"
        deadline = time.monotonic() + CALL_SECONDS
        called = [self._listener.accept(self._token, {}, deadline) for _ in range(self._n_machines - 1)]
        return Job(socket.gethostname(), self.n_here, called, self._leaders())

    def _leaders(self) -> MpiLeaders:
        """Return the leaders of a new run, whose commands count from 1 again; all machines call it."""
        return MpiLeaders(self._world)

    def leave_out_lost(self) -> None:
        raise SynkStateError(
            f"restart: {LAUNCHED}, and it ends with each of them: start it again from a checkpoint"
        )

    def use(self, hosts: Any) -> None:
        raise SynkStateError(f"restart: {LAUNCHED}, which are chosen: leave hosts out")

    def follow(self) -> NoReturn:
        """Be the leader of this machine, in one run after the other, until the script has ended."""
        hello = {"machine": self._number, "ranks": self.n_here}
        while True:
            try:
                end, _ = connect(self._address, self._token, hello, time.monotonic() + NEXT_RUN_SECONDS)
            except OSError:  # nobody listens any more
                sys.exit()
            lead(LeaderEnd(end), self._leaders())


def joined_world() -> JoinedWorld | None:
    """Return the MPI job that has started this script, if a launcher of MPI did so on several machines."""
    if under_mpi() in (None, "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1"):
        return None
    world = load_mpi().COMM_WORLD
    return JoinedWorld(world) if world.size > 1 else None
