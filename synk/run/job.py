"""The processes that a run has on other machines, from when they have called until they have ended.

    mpirun -n H python script -> on the first machine: JoinedJob; on others: the script never gets beyond `fork`
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any, NoReturn, Protocol

from synk.device.cpu import count_cores
from synk.machines.handshake import Listener, connect
from synk.machines.hosts import under_mpi
from synk.machines.mpi_leaders import MpiLeaders
from synk.machines.mpi_links import load_mpi
from synk.machines.proof import new_token
from synk.run.leader import lead
from synk.transport.base import Leaders
from synk.transport.links import LeaderEnd

CALL_SECONDS = 20.0  # for all leaders to call


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


class JoinedJob:
    """The MPI job that has started this script on every machine: a `Job`."""

    def __init__(self, world: Any, n_here: int):
        host, token = socket.gethostname(), new_token()
        address = world.allgather(_own_address())[0]
        listener = Listener(address)
        try:
            world.bcast((listener.address, token))
            called = self._called(listener, token, world.size - 1)
        finally:
            listener.close()
        self.ends = [end for end, _ in called]
        self.hosts = [host, *(hello["host"] for _, hello in called)]
        self.sizes = [n_here, *(hello["ranks"] for _, hello in called)]
        self.leaders: Leaders = MpiLeaders(world)

    def _called(self, listener: Listener, token: bytes, n: int) -> list[tuple[socket.socket, Any]]:
        """Return the connections to all leaders, in the order of machines."""
        deadline = time.monotonic() + CALL_SECONDS
        called = [listener.accept(token, {}, deadline) for _ in range(n)]
        return sorted(called, key=lambda one: one[1]["machine"])

    def end(self, seconds: float) -> None:
        pass  # with the script


def joined_world() -> Any:
    """Return MPI's communicator of all machines if a launcher of MPI has started this script on several."""
    if under_mpi() in (None, "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1"):
        return None
    world = load_mpi().COMM_WORLD
    return world if world.size > 1 else None


def follow(world: Any, n_here: int) -> NoReturn:
    """Be the leader of this machine until the script has ended on the first one."""
    world.allgather(_own_address())
    address, token = world.bcast(None)
    hello = {"machine": world.rank, "ranks": n_here, "pid": os.getpid()}
    end, _ = connect(address, token, hello, time.monotonic() + CALL_SECONDS)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)  # the master reads when it has computed
    lead(LeaderEnd(end), MpiLeaders(world))
    sys.exit()


def _own_address() -> str:
    """Return the address of this machine at which the others find it."""
    return socket.gethostbyname(socket.gethostname())
