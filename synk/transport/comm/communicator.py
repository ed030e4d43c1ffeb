"""The interface of all communicators.

Every rank of a run calls the same methods in the same order, whether it has rows or not. Programs and
collectives use this interface only, however the ranks are connected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from synk.transport.comm.blocks import Blocks
from synk.transport.comm.header import Header, check_equal
from synk.values.rows import split


class SharedArrays(list[Any]):
    """The arrays of all ranks of this machine, by place, in memory that all of these ranks share.

    Attributes
    ----------
    mine : array
        The array of this rank.
    """

    def __init__(self, arrays: Iterable[Any], place: int):
        super().__init__(arrays)
        self.mine = self[place]
        self.plans: dict[Any, Any] = {}  # of collectives on these arrays, kept by a communicator


Shared = SharedArrays | None
Read = Callable[[Sequence[Any]], Any]


def copies(arrays: Sequence[Any]) -> Any:
    """Return a copy of each array: the default of ``read`` in `Collectives.all_gather` and `gather`."""
    return [array.copy() for array in arrays]


class Collectives(ABC):
    """Collectives on arrays of the device's array module.

    Reductions go in a fixed order, rank order or that of a device's library, so the same run gives the same
    bits, and all ranks receive the same bits. ``op`` is one of `OPERATIONS`; an average of finite values is
    finite.

    All methods take ``shared``: the arrays of all ranks of this machine, of which ``shared.mine`` is the
    array given. If every rank gives them, no array is copied within a machine. The arrays that ``read`` is
    called with may change after it returns.
    """

    rank: int
    n_ranks: int

    @abstractmethod
    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        """Return, on every rank, the arrays of all ranks combined element by element by ``op``.

        ``array`` may be overwritten and returned. Raises CollectiveMismatch on every rank if dtypes, shapes
        or operations differ.
        """

    @abstractmethod
    def reduce(
        self, array: Any, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        """Return the arrays of all ranks combined by ``op`` on rank ``root``, and None on others.

        With ``in_place`` the root's array may be overwritten and returned.
        """

    @abstractmethod
    def broadcast(self, array: Any, root: int = 0, shared: Shared = None) -> Any:
        """Return rank ``root``'s array on every rank; shapes may differ between ranks, but not dtypes.

        With ``shared``, ``array`` is overwritten and returned.
        """

    @abstractmethod
    def all_gather(self, array: Any, shared: Shared = None, read: Read = copies) -> Any:
        """Return ``read(arrays)`` of the arrays of all ranks in rank order; their shapes may differ."""

    @abstractmethod
    def gather(
        self, array: Any, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        """Return ``read(arrays)`` of the arrays of all ranks on rank ``root``, and None on others.

        With ``only``, the number of a rank, ``arrays`` has the array of that rank alone.
        """

    def reduce_scatter(self, array: Any, op: str, shared: Shared = None) -> Any:
        """Return this rank's part of the rows of the result of `all_reduce`; for NumPy arrays only.

        Raises CollectiveMismatch on every rank if shapes differ.
        """

        def read(arrays: Sequence[Any]) -> Any:
            self._check_alike("reduce_scatter", op, arrays, from_axis=0)
            mine = slice(*split(len(array), self.n_ranks)[self.rank])
            result = np.empty_like(array[mine], order="C")
            Blocks([one[mine].reshape(-1) for one in arrays], op, [result.reshape(-1)], {}).run()
            return result

        return self.all_gather(array, shared, read)

    def all_to_all(self, array: Any, shared: Shared = None) -> Any:
        """Return this rank's part of the rows of every rank's array, joined; for NumPy arrays only.

        Raises CollectiveMismatch on every rank if arrays differ in more than their rows.
        """

        def read(arrays: Sequence[Any]) -> Any:
            self._check_alike("all_to_all", "sum", arrays, from_axis=1)
            parts = [split(len(one), self.n_ranks)[self.rank] for one in arrays]
            return np.concatenate([one[slice(*part)] for one, part in zip(arrays, parts, strict=True)])

        return self.all_gather(array, shared, read)

    def _check_alike(self, kind: str, op: str, arrays: Sequence[Any], from_axis: int) -> None:
        if len({array.shape[from_axis:] for array in arrays}) > 1:
            headers = [Header(kind, op, array.dtype, array.shape, False, 0) for array in arrays]
            check_equal(headers, shapes=True)


class Communicator(Collectives):
    """The connection of one rank to the other ranks of a run, with the collectives on arrays."""

    def __init__(self, rank: int, n_ranks: int):
        self.rank = rank
        self.n_ranks = n_ranks

    def __deepcopy__(self, memo: Any) -> Communicator:
        """Return this communicator itself, since debug mode copies all inputs of a node, also this one."""
        return self

    @property
    def on_host(self) -> Communicator:
        """The communicator of the same ranks for NumPy arrays: this one, unless it is one for a device."""
        return self

    def close(self) -> None:
        """Close the connections to the other ranks, whose processes may have ended already."""

    def at_once(
        self, kind: str, op: str, shared: Sequence[SharedArrays | None], shapes: bool = True
    ) -> AbstractContextManager[None]:
        """Return a context for several collectives of one kind, which may then share their barriers.

        Inside of it the arrays may be changed by these collectives only. ``kind`` is the name of the
        collective in errors, of at most 16 letters. ``shared`` has the arrays that each of the collectives
        will be given, and ``shapes`` tells whether their shapes must be equal on all ranks.
        """
        return nullcontext()
