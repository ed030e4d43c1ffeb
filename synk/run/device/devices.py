"""The devices of all ranks of a run on one machine, and those of runs on processor cores.

Another kind of device has a class of its own, derived from `Devices`; `synk.run.device.choose` decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from socket import socket
from typing import ClassVar, NoReturn, Protocol, Self

from synk.run.device.cpu import CpuDevice, count_cores
from synk.run.device.device import Device

# The main function of a forked worker: live(its end of a socket, pid of the master).
Live = Callable[[socket, int], NoReturn]


class ForkingServer(Protocol):
    """A process that forks workers for the master, which has used its device and cannot."""

    @property
    def pid(self) -> int: ...

    def fork(self, end: socket) -> int:
        """Fork a worker that gets this end of a socket; return its pid."""

    def trouble(self) -> str:
        """Return why the server cannot fork any more; "" if it can."""

    def close(self) -> None:
        """End the server."""


@dataclass(frozen=True)
class Devices(ABC):
    """The devices that the ranks of a run compute on.

    Attributes
    ----------
    n_ranks : int
        The number of ranks on this machine.
    threads : int
        The number of threads for matrix products of each rank, on cores.
    bind : {"none", "core", "numa"}
        Whether each rank is bound to cores of its own, or to those of a NUMA node.
    asks_threads : bool
        Whether the script has given ``threads``.
    on_host : bool
        Whether arrays are in host memory, where ranks can read each other's without a copy.
    """

    n_ranks: int
    threads: int
    bind: str = "none"
    asks_threads: bool = False

    on_host: ClassVar[bool]

    @abstractmethod
    def make(self, rank: int) -> Device:
        """Return the device of one rank, not activated."""

    def with_ranks(self, n_ranks: int) -> Self:
        """Return the devices for another number of ranks on this machine."""
        threads = self.threads if self.asks_threads else max(1, count_cores() // n_ranks)
        return replace(self, n_ranks=n_ranks, threads=threads)

    def name(self, rank: int) -> str:
        """Return the name of a rank's device; "" for cores, which are listed by number."""
        return ""

    def check_ranks(self, n_ranks: int) -> None:  # noqa: B027  (most devices take any number)
        """Raise ValueError if a run that was forked with these devices cannot restart with so many ranks."""

    @property
    def needs_fork_server(self) -> bool:
        """Say whether this process cannot fork workers any more once it has used its device."""
        return False

    def start_fork_server(self, live: Live) -> ForkingServer:
        """Start a process that forks the workers in its place, if that is needed."""
        raise NotImplementedError(f"{type(self).__name__} lets this process fork")


class CpuDevices(Devices):
    """Processor cores, divided among the ranks."""

    on_host = True

    def make(self, rank: int) -> Device:
        return CpuDevice(self.threads)
