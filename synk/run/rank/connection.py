"""Decide how arrays go from rank to rank; the master does so once, before it forks.

devices, environment -> decide -> Connection ... in each rank's process: Connection.communicator
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

from synk.gpu.comm.nccl_library import Library, allow_sharing, connect_at_once, connection, import_nccl
from synk.gpu.rank.gpu_rank import GpuRank
from synk.run.device import Device, Devices
from synk.run.rank.rank import Rank
from synk.transport.comm import (
    Communicator,
    HostCommunicator,
    LoneCommunicator,
    MachinesCommunicator,
    NcclCommunicator,
    StagedCommunicator,
)
from synk.transport.commands.sync import Barrier
from synk.transport.memory.shm import Segment


class Connection(NamedTuple):
    """The kind of connection by which arrays go from one rank to another.

    Attributes
    ----------
    kind : {"host", "nccl", "staged"}
        "host": the arrays are in host memory anyway, or there is one rank. "nccl": NCCL moves them between
        GPUs. "staged": they are copied from GPUs to host memory and back.
    added : tuple of str
        The environment variables that were set for NCCL.
    rank : type
        The class of the run's ranks, `Rank` or `GpuRank`.
    """

    kind: str = "host"
    added: tuple[str, ...] = ()
    rank: type[Rank] = Rank

    def communicator(self, barrier: Barrier, device: Device, grow: Callable[[int], Segment]) -> Communicator:
        """Return the communicator of a rank; call it in the rank's process, after its device is activated.

        Ranks are linked at their first collective, not here. ``grow`` is a parameter of `HostCommunicator`.
        """
        host = LoneCommunicator() if barrier.n_places == 1 else HostCommunicator(barrier, grow)
        if barrier.machine is not None:
            return MachinesCommunicator(host, barrier.machine, barrier.leaders, barrier.look)
        if barrier.n_ranks == 1:
            return host
        if self.kind == "staged":
            return StagedCommunicator(host, device.to_host, device.from_host)
        if self.kind == "nccl":
            library = Library(device.xp, import_nccl())
            return NcclCommunicator(barrier, library, host)
        return host

    def withdraw(self, environ: MutableMapping[str, str]) -> None:
        """Remove the environment variables that were set for NCCL, at the end of the run."""
        for name in self.added:
            environ.pop(name, None)


def decide(devices: Devices, environ: MutableMapping[str, str]) -> Connection:
    """Return how the ranks of a run on these devices are connected.

    Variables for NCCL are set in ``environ``, which ranks inherit; one of them allows ranks to share a GPU.
    """
    if not devices.gpus:
        return Connection()
    if devices.n_ranks == 1:
        return Connection(rank=GpuRank)
    numbers = [devices.gpus[rank % len(devices.gpus)].number for rank in range(devices.n_ranks)]
    added = (*allow_sharing(numbers, environ), *connect_at_once(environ))
    nccl = import_nccl()
    version = None if nccl is None else nccl.get_version()
    kind = connection(numbers, version, environ)
    return Connection(kind, added, GpuRank)
