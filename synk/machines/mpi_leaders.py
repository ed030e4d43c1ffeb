"""The leaders of all machines, as a process of the MPI job sees them."""

from __future__ import annotations

from typing import Any

from synk.machines.linked_leaders import LinkedLeaders
from synk.machines.mpi_links import MpiLinks


class MpiLeaders(LinkedLeaders):
    """The leaders that are the processes of an MPI communicator, in its order: `Leaders`."""

    def __init__(self, communicator: Any):
        super().__init__(MpiLinks(communicator))
