"""The processes that a run has on other machines, from when they have called until they have ended.

    mpirun -n H python script -> JoinedWorld -> on the first machine: call -> Job; on others: follow, to the end
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from synk.machines.handshake import Listener, connect
from synk.machines.hosts import under_mpi
from synk.machines.mpi_leaders import MpiLeaders
from synk.machines.mpi_links import load_mpi
from synk.machines.proof import Hello, new_token
from synk.run.leader import lead
from synk.transport.base import Leaders
from synk.transport.links import LeaderEnd

CALL_SECONDS = 20.0  # for all leaders to call
NEXT_RUN_SECONDS = 1e6  # for the script to fork again, or to end


class Job(Protocol):
    """The processes on other machines, which have called.

    Attributes
    ----------
    hosts : list of str
        Names of all machines, this one's first.
    sizes : list of int
        Ranks of each.
    ends : list of socket
        Connections to the leaders of the others, in order.
    leaders : Leaders
        As this machine sees them.
    """

    hosts: list[str]
    sizes: list[int]
    ends: list[socket.socket]
    leaders: Leaders

    def end(self, seconds: float) -> None:
        """End the processes; those that were asked to leave have so many seconds."""


class Called:
    """Leaders that have called: a `Job` whose processes end by themselves."""

    def __init__(self, n_here: int, called: Sequence[tuple[socket.socket, Hello]], leaders: Leaders):
        ordered = sorted(called, key=lambda one: one[1]["machine"])
        self.ends = [end for end, _ in ordered]
        self.hosts = [socket.gethostname(), *(hello["host"] for _, hello in ordered)]
        self.sizes = [n_here, *(hello["ranks"] for _, hello in ordered)]
        self.leaders = leaders

    def end(self, seconds: float) -> None:
        pass


class JoinedWorld:
    """The MPI job that has started this script on every machine, for all runs of the script, one after the other.

    On the first machine it listens until the script ends, so that leaders call again for the next run, or after a
    restart; on the others `follow` does not return.
    """

    def __init__(self, world: Any):
        self.is_first = world.rank == 0
        self._number, self._n_machines = world.rank, world.size
        address = world.allgather(socket.gethostbyname(socket.gethostname()))[0]
        self._listener = Listener(address) if self.is_first else None
        told = (self._listener.address, new_token()) if self._listener else None
        self._address, self._token = world.bcast(told)
        self._leaders = MpiLeaders(world)

    def call(self, n_here: int) -> Job:
        """Return the leaders of the other machines, once all have called."""
        assert self._listener is not None, "leaders call the first machine"
        deadline = time.monotonic() + CALL_SECONDS
        called = [self._listener.accept(self._token, {}, deadline) for _ in range(self._n_machines - 1)]
        return Called(n_here, called, self._leaders)

    def follow(self, n_here: int) -> NoReturn:
        """Be the leader of this machine, in one run after the other, until the script has ended."""
        hello = {"machine": self._number, "ranks": n_here}
        while True:
            try:
                end, _ = connect(self._address, self._token, hello, time.monotonic() + NEXT_RUN_SECONDS)
            except OSError:  # nobody listens any more
                sys.exit()
            # Else the kernel would cut it while the master computes, and does not read a large reply.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
            lead(LeaderEnd(end), self._leaders)


def joined_world() -> JoinedWorld | None:
    """Return the MPI job that has started this script, if a launcher of MPI did so on several machines."""
    if under_mpi() in (None, "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1"):
        return None
    world = load_mpi().COMM_WORLD
    return JoinedWorld(world) if world.size > 1 else None
