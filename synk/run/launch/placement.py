"""Bind the ranks of a machine to CPUs, and find out which CPUs each rank may use.

Devices, place -> Binding: this process runs on its rank's CPUs -> release
process ids of the ranks, Devices -> placement -> `synk.transport.machines.tree`
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress

from synk.run.device import Devices
from synk.transport.machines.binding import plan_binding
from synk.transport.machines.topology import read_topology
from synk.transport.machines.tree import PlacedMachine, PlacedRank


class Binding:
    """Binds this process to its rank's CPUs when the object is made, until `release`."""

    def __init__(self, devices: Devices, place: int):
        self._before = os.sched_getaffinity(0)
        if devices.bind != "none":
            topology = read_topology(allowed=self._before)
            move_to(plan_binding(devices.n_ranks, devices.bind, topology, self._before)[place])

    def release(self) -> None:
        """Let the process use all CPUs again that it could use before the binding."""
        move_to(self._before)


def move_to(cpus: Iterable[int]) -> None:
    """Let all threads of this process, and threads that they start, run on these CPUs only."""
    threads = [0]  # 0 is the calling thread, for systems without /proc
    with suppress(OSError):
        threads = list(map(int, os.listdir("/proc/self/task")))
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cpus)


def placement(
    pids: Sequence[int], devices: Devices, host: str | None = None, first: int = 0
) -> PlacedMachine:
    """Return this machine with the CPUs and the device of each of its ranks.

    ``pids`` are the process ids of the ranks, in rank order; the first of them is rank ``first``.
    """
    ranks = [PlacedRank(first + place, _cpus(pid), devices.name(place)) for place, pid in enumerate(pids)]
    return PlacedMachine(host or socket.gethostname(), read_topology(allowed=os.sched_getaffinity(0)), ranks)


def _cpus(pid: int) -> frozenset[int]:
    """Return the CPUs that a process may run on; none if it has ended."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except ProcessLookupError:
        return frozenset()
