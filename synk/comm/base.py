"""The one interface of all communicators.

Every rank of a run calls the same methods in the same order, whatever rows it has; programs
and collectives know nothing else about how ranks are connected.

Imports the standard library only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Communicator(ABC):
    """Collectives among the ranks of a run.

    Arrays are of the device's array module. Reductions go in rank order, so the same run gives
    the same bits, and all ranks receive the same bits.

    Attributes
    ----------
    rank : int
        This rank.
    n_ranks : int
    """

    def __init__(self, rank: int, n_ranks: int):
        self.rank = rank
        self.n_ranks = n_ranks

    @abstractmethod
    def all_reduce(self, array: Any, op: str, homes: Sequence[Any] | None = None) -> Any:
        """Return the arrays of all ranks combined by ``op``, on every rank.

        Parameters
        ----------
        array : array
            Of the same dtype and shape on every rank; it may be overwritten and returned.
        op : {"avg", "sum", "prod", "min", "max"}
        homes : sequence of array, optional
            Where all ranks' arrays are, seen from here; ``homes[rank]`` is ``array``. Where every
            rank gives them, nothing is copied.

        Raises
        ------
        CollectiveMismatch
            On every rank, if dtypes, shapes or operations differ.
        """

    @abstractmethod
    def reduce(self, array: Any, op: str, root: int = 0) -> Any | None:
        """Return the arrays of all ranks combined by ``op`` on rank ``root``, None on others."""

    @abstractmethod
    def broadcast(self, array: Any, root: int = 0, homes: Sequence[Any] | None = None) -> Any:
        """Return rank ``root``'s array; only its dtype must be that of ``array`` elsewhere."""

    @abstractmethod
    def all_gather(self, array: Any) -> list[Any]:
        """Return the arrays of all ranks in rank order; their shapes may differ."""
