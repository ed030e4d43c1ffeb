"""The communicator of a run with one rank, whose collectives return what they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from synk.transport.comm.communicator import Communicator, Read, Shared, copies


class LoneCommunicator(Communicator):
    """Collectives of a single rank."""

    def __init__(self) -> None:
        super().__init__(rank=0, n_ranks=1)

    def at_first(
        self, payload: bytes, room: int, work: Callable[[Sequence[bytes]], bytes], result_room: int
    ) -> bytes:
        """Return ``work([payload])``: see `HostCommunicator`."""
        return work([payload])

    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        return array

    def reduce(
        self, array: Any, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        return array if in_place else array.copy()

    def broadcast(self, array: Any, root: int = 0, shared: Shared = None) -> Any:
        return array

    def all_gather(self, array: Any, shared: Shared = None, read: Read = copies) -> Any:
        return read([array])

    def gather(
        self, array: Any, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        return read([array])
