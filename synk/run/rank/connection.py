"""Decide how arrays go from rank to rank; the master does so once, before it forks.

devices, environment -> decide -> Connection ... in each rank's process: Connection.communicator
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import singledispatch
from typing import ClassVar

from synk.run.device import Device, Devices
from synk.run.rank.rank import Rank
from synk.transport.comm import Communicator, HostCommunicator, LoneCommunicator, MachinesCommunicator
from synk.transport.commands.sync import Barrier
from synk.transport.memory.shm import Segment


@dataclass(frozen=True)
class Connection:
    """The way of arrays from one rank to another: here through the host's memory, where they are anyway.

    Attributes
    ----------
    rank : type
        The class of the run's ranks, `Rank` or one derived from it.
    """

    rank: ClassVar[type[Rank]] = Rank

    def communicator(self, barrier: Barrier, device: Device, grow: Callable[[int], Segment]) -> Communicator:
        """Return the communicator of a rank; call it in the rank's process, after its device is activated.

        Ranks are linked at their first collective, not here. ``grow`` is a parameter of `HostCommunicator`.
        """
        host = LoneCommunicator() if barrier.n_places == 1 else HostCommunicator(barrier, grow)
        if barrier.machine is not None:
            return MachinesCommunicator(host, barrier.machine, barrier.leaders, barrier.look)
        return host if barrier.n_ranks == 1 else self.between(host, barrier, device)

    def between(self, host: Communicator, barrier: Barrier, device: Device) -> Communicator:
        """Return the communicator for arrays of a device, given that for arrays of the host."""
        return host

    def withdraw(self, environ: MutableMapping[str, str]) -> None:
        """Remove the environment variables that were set for the connection, at the end of the run."""


@singledispatch
def decide(devices: Devices, environ: MutableMapping[str, str]) -> Connection:
    """Return how the ranks of a run on these devices are connected.

    An entry for another kind of `Devices` may set variables in ``environ``, which ranks inherit.
    """
    return Connection()
