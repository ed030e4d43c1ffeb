"""The communicator of a run with one rank: everything is already there.

Imports ``comm.base`` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk.comm.base import Communicator


class LoneCommunicator(Communicator):
    """Collectives of a single rank."""

    def __init__(self) -> None:
        super().__init__(rank=0, n_ranks=1)

    def all_reduce(self, array: Any, op: str, homes: Sequence[Any] | None = None) -> Any:
        return array

    def reduce(self, array: Any, op: str, root: int = 0) -> Any | None:
        return array

    def broadcast(self, array: Any, root: int = 0, homes: Sequence[Any] | None = None) -> Any:
        return array

    def all_gather(self, array: Any) -> list[Any]:
        return [array]
