"""The one interface of all communicators.

Every rank of a run calls the same methods in the same order, whatever rows it has; programs
and collectives know nothing else about how ranks are connected.
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
    """The arrays of all ranks of this machine, by place, in memory that every one of them sees.

    Attributes
    ----------
    mine : array
        This rank's.
    """

    def __init__(self, arrays: Iterable[Any], place: int):
        super().__init__(arrays)
        self.mine = self[place]
        self.plans: dict[Any, Any] = {}  # what a communicator has worked out about them, to be used again


Shared = SharedArrays | None
Read = Callable[[Sequence[Any]], Any]


def copies(arrays: Sequence[Any]) -> Any:
    """Return a list of copies: what a gathering reads unless told otherwise."""
    return [array.copy() for array in arrays]


class Collectives(ABC):
    """Collectives on arrays, all of which `ObservedCommunicator` watches.

    Arrays are of the device's array module. Reductions go in an order that is fixed, so the same run
    gives the same bits, and all ranks receive the same bits: rank order, or with NCCL its own. ``op``
    is one of `OPERATIONS`; an average of finite values is finite.

    All take ``shared``: where the arrays of all ranks of this machine are, seen from here;
    ``shared.mine`` is the array given. Where every rank has them, nothing is copied on the way
    within a machine. What is read through ``read`` holds still only until that returns.
    """

    rank: int
    n_ranks: int

    @abstractmethod
    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        """Return the arrays of all ranks, of one dtype and shape, combined by ``op``, on every rank.

        ``array`` may be overwritten and returned. Raises CollectiveMismatch on every rank if dtypes, shapes
        or operations differ.
        """

    @abstractmethod
    def reduce(
        self, array: Any, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        """Return the arrays of all ranks combined by ``op`` on rank ``root``, None on others.

        ``in_place`` permits that the root's array is overwritten and returned.
        """

    @abstractmethod
    def broadcast(self, array: Any, root: int = 0, shared: Shared = None) -> Any:
        """Return rank ``root``'s array; only its dtype must be that of ``array`` elsewhere.

        With ``shared``, ``array`` is overwritten and returned.
        """

    @abstractmethod
    def all_gather(self, array: Any, shared: Shared = None, read: Read = copies) -> Any:
        """Return ``read(arrays)`` of the arrays of all ranks in rank order; their shapes may differ."""

    @abstractmethod
    def gather(
        self, array: Any, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        """Do as `all_gather` on rank ``root``; return None on others.

        With ``only``, a rank, ``read`` gets that rank's array alone.
        """

    def reduce_scatter(self, array: Any, op: str, shared: Shared = None) -> Any:
        """Return this rank's part of the rows of what `all_reduce` returns; of NumPy arrays only.

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
        """Return this rank's part of the rows of every rank's array, joined; of NumPy arrays only.

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
    """Collectives among the ranks of a run, and what links these."""

    def __init__(self, rank: int, n_ranks: int):
        self.rank = rank
        self.n_ranks = n_ranks

    def __deepcopy__(self, memo: Any) -> Communicator:
        """Return itself: what copies the inputs of a node, as debug mode does, means the arrays."""
        return self

    @property
    def on_host(self) -> Communicator:
        """The communicator of the same ranks that takes NumPy arrays: this one, unless it is of a device."""
        return self

    def close(self) -> None:
        """Give up what links this rank to the others; their processes may have ended."""

    def at_once(
        self, kind: str, op: str, shared: Sequence[SharedArrays | None], shapes: bool = True
    ) -> AbstractContextManager[None]:
        """Return a context for several collectives of one kind, in which ranks may meet once for all of them.

        Nobody may change an array in there but by these collectives. ``kind`` is that of collective, as
        named in errors, of at most 16 letters; ``shared`` is what each of the collectives will be given;
        ``shapes`` tells whether shapes must be equal.
        """
        return nullcontext()


class ObservedCommunicator:
    """A communicator that is watched: ``watch(name, method)`` returns what is called instead of a method."""

    def __init__(self, communicator: Communicator, watch: Callable[[str, Callable], Callable]):
        self._communicator = communicator
        self._watched = {
            name: watch(name, getattr(communicator, name)) for name in vars(Collectives) if name[0] != "_"
        }

    def __deepcopy__(self, memo: Any) -> ObservedCommunicator:
        return self  # as communicators do

    def __getattr__(self, name: str) -> Any:
        return self._watched.get(name) or getattr(self._communicator, name)
