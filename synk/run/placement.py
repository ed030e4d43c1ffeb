"""Tell where the ranks of this machine are, as the kernel has it: whoever has bound them, and to what.

processes of the ranks, Devices -> placement -> `synk.machines.tree`
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from synk.device import Devices
from synk.machines.topology import read_topology
from synk.machines.tree import PlacedRank, Placement


def placement(pids: Sequence[int], devices: Devices) -> Placement:
    """Return this machine with the ranks of a run, whose processes are given in rank order."""
    gpus = devices.gpus
    ranks = [
        PlacedRank(rank, _cpus(pid), str(gpus[rank % len(gpus)]) if gpus else "")
        for rank, pid in enumerate(pids)
    ]
    return Placement(socket.gethostname(), read_topology(allowed=os.sched_getaffinity(0)), ranks)


def _cpus(pid: int) -> frozenset[int]:
    """Return the CPUs that a process may run on; none if it has ended."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except ProcessLookupError:
        return frozenset()
