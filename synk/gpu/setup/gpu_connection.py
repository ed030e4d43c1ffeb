"""Decide how arrays go from GPU to GPU: by NCCL, or through host memory.

GpuDevices, NCCL's version, environment -> connect_gpus -> GpuConnection
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import ClassVar

from synk.gpu.comm.nccl import NcclCommunicator
from synk.gpu.comm.nccl_library import Library, allow_sharing, connect_at_once, connection, import_nccl
from synk.gpu.comm.staged import StagedCommunicator
from synk.gpu.rank.gpu_rank import GpuRank
from synk.gpu.setup.gpu_devices import GpuDevices
from synk.run.device import Device
from synk.run.rank.connection import Connection
from synk.run.rank.rank import Rank
from synk.transport.comm import Communicator
from synk.transport.commands.sync import Barrier


@dataclass(frozen=True)
class GpuConnection(Connection):
    """The way of arrays from one GPU to another.

    Attributes
    ----------
    kind : {"none", "nccl", "staged"}
        "none": there is one rank. "nccl": NCCL moves arrays between GPUs. "staged": they are copied from GPUs
        to host memory and back.
    added : tuple of str
        The environment variables that were set for NCCL.
    """

    kind: str
    added: tuple[str, ...] = ()

    rank: ClassVar[type[Rank]] = GpuRank

    def between(self, host: Communicator, barrier: Barrier, device: Device) -> Communicator:
        if self.kind == "staged":
            return StagedCommunicator(host, device.to_host, device.from_host)
        return NcclCommunicator(barrier, Library(device.xp, import_nccl()), host)

    def withdraw(self, environ: MutableMapping[str, str]) -> None:
        for name in self.added:
            environ.pop(name, None)


def connect_gpus(devices: GpuDevices, environ: MutableMapping[str, str]) -> GpuConnection:
    """Return how the ranks of a run on GPUs are connected.

    Variables for NCCL are set in ``environ``, which ranks inherit; one of them allows ranks to share a GPU.
    """
    if devices.n_ranks == 1:
        return GpuConnection("none")
    numbers = [devices.of(rank).number for rank in range(devices.n_ranks)]
    added = (*allow_sharing(numbers, environ), *connect_at_once(environ))
    nccl = import_nccl()
    version = None if nccl is None else nccl.get_version()
    return GpuConnection(connection(numbers, version, environ), added)
