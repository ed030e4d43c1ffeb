"""Collectives through shared memory, for ranks on one machine.

Every rank describes its array in its header. Arrays that live in shared memory are combined where
they are: each rank reduces one chunk of all of them, into all of them.

    header -> barrier -> compare -> reduce my chunk -> barrier

Others are copied to slots of an arena first.

    header -> barrier -> compare, grow -> slot -> barrier -> reduce my chunk -> barrier -> copy out

A rank writes its next header only behind a barrier that every rank reaches after reading this
one, and its slot likewise, so nothing is overwritten while it is read.

Imports ``comm.base``, ``errors``, ``reduction``, ``shm`` and ``sync``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.comm.base import Communicator
from synk.errors import CollectiveMismatch
from synk.plan import split
from synk.reduction import OPERATIONS, UFUNCS, accumulating_dtype
from synk.shm import Segment
from synk.sync import Barrier, ControlBlock

KINDS = ("all_reduce", "reduce", "broadcast", "all_gather")
ALIGNMENT = 64  # bytes: slots start on cache lines
BLOCK = 1 << 15  # elements: a block of each slot stays in the cache while it is reduced
FIXED_WORDS = 6


class Header(NamedTuple):
    """What one rank brings to a collective."""

    kind: str
    op: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    home: bool = False  # whether this rank sees the arrays of all
    arena: int = 0  # bytes of the arena that this rank has

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def write(self, words: memoryview) -> None:
        words[0] = KINDS.index(self.kind)
        words[1] = OPERATIONS.index(self.op)
        words[2] = int.from_bytes(self.dtype.str.encode(), "little")
        words[3] = len(self.shape)
        words[4] = self.home
        words[5] = self.arena
        for axis, length in enumerate(self.shape):
            words[FIXED_WORDS + axis] = length

    @classmethod
    def read(cls, words: memoryview) -> Header:
        dtype = np.dtype(words[2].to_bytes(8, "little").rstrip(b"\0").decode())
        shape = tuple(words[FIXED_WORDS : FIXED_WORDS + words[3]])
        return cls(KINDS[words[0]], OPERATIONS[words[1]], dtype, shape, bool(words[4]), words[5])


class HostCommunicator(Communicator):
    """Collectives of NumPy arrays through an arena in shared memory.

    Parameters
    ----------
    rank : int
    control, barrier
        The run's shared words and this rank's barrier on them.
    grow : callable
        ``grow(nbytes) -> Segment`` gives all ranks one new segment, the same; every rank calls
        it at the same point.
    """

    def __init__(self, rank: int, control: ControlBlock, barrier: Barrier, grow: Callable[[int], Segment]):
        super().__init__(rank, control.n_ranks)
        self._control = control
        self._barrier = barrier
        self._grow = grow
        self._arena: Segment | None = None

    def all_reduce(
        self, array: NDArray[Any], op: str, homes: Sequence[NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        headers = self._enter("all_reduce", op, array, homes)
        self._check_equal(headers)
        if homes is not None and all(header.home for header in headers):
            self._reduce_chunk([home.reshape(-1) for home in homes], op, everywhere=True)
            return array
        result = self._reduce_staged(headers, array, op)
        if not array.flags.writeable:
            return result.copy()
        array[...] = result
        return array

    def reduce(self, array: NDArray[Any], op: str, root: int = 0) -> NDArray[Any] | None:
        headers = self._enter("reduce", op, array)
        self._check_equal(headers)
        # On one machine the work is shared by all ranks anyway.
        result = self._reduce_staged(headers, array, op)
        return result.copy() if self.rank == root else None

    def broadcast(
        self, array: NDArray[Any], root: int = 0, homes: Sequence[NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        headers = self._enter("broadcast", "sum", array, homes)
        self._check_equal([header._replace(shape=()) for header in headers])
        if homes is not None and all(header.home for header in headers):
            if self.rank != root:
                array[...] = homes[root]
            self._barrier.wait()
            return array
        slot = self._fill_slots(headers, array, only=root)[root]
        return slot.reshape(headers[root].shape).copy()

    def all_gather(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        headers = self._enter("all_gather", "sum", array)
        self._check_equal([header._replace(shape=()) for header in headers])
        slots = self._fill_slots(headers, array)
        return [slot.reshape(header.shape).copy() for slot, header in zip(slots, headers, strict=True)]

    def _enter(self, kind: str, op: str, array: NDArray[Any], homes: Any = None) -> list[Header]:
        """Tell the others what this rank brings; return what all bring."""
        arena = 0 if self._arena is None else self._arena.nbytes
        mine = Header(kind, op, array.dtype, array.shape, homes is not None, arena)
        mine.write(self._control.header(self.rank))
        self._barrier.wait()
        return [Header.read(self._control.header(rank)) for rank in range(self.n_ranks)]

    def _check_equal(self, headers: list[Header]) -> None:
        if len({header._replace(home=False, arena=0) for header in headers}) > 1:
            raise CollectiveMismatch(
                "ranks disagree on a collective: "
                + "; ".join(
                    f"rank {rank}: {header.kind} {header.op!r} of {header.dtype}{list(header.shape)}"
                    for rank, header in enumerate(headers)
                )
            )

    def _reduce_staged(self, headers: list[Header], array: NDArray[Any], op: str) -> NDArray[Any]:
        """Return the combination of all ranks' arrays, in the arena."""
        slots = self._fill_slots(headers, array)
        self._reduce_chunk(slots, op, everywhere=False)
        return slots[0].reshape(array.shape)

    def _reduce_chunk(self, arrays: Sequence[NDArray[Any]], op: str, everywhere: bool) -> None:
        """Reduce this rank's part of flat arrays, into the first or into all; return when all ranks have."""
        start, stop = split(arrays[0].size, self.n_ranks)[self.rank]
        _reduce([array[start:stop] for array in arrays], op, everywhere)
        self._barrier.wait()

    def _fill_slots(
        self, headers: list[Header], array: NDArray[Any], only: int | None = None
    ) -> list[NDArray[Any]]:
        """Copy this rank's array to its slot and return all slots, flat, once all are filled."""
        offsets = [0]
        for header in headers:
            offsets.append(offsets[-1] + -(-header.nbytes // ALIGNMENT) * ALIGNMENT)
        arenas = {header.arena for header in headers}
        # They differ where a growth was interrupted; decided by headers, all ranks decide the same.
        if self._arena is None or len(arenas) > 1 or min(arenas) < offsets[-1]:
            self._arena = self._grow(max(offsets[-1], max(arenas) + 1))
        slots = [
            self._arena.array(header.dtype, (header.nbytes // header.dtype.itemsize,), offset)
            for header, offset in zip(headers, offsets, strict=False)
        ]
        if only is None or only == self.rank:
            slots[self.rank].reshape(array.shape)[...] = array
        self._barrier.wait()
        return slots


def _reduce(chunks: list[NDArray[Any]], op: str, everywhere: bool) -> None:
    """Reduce ``chunks`` in order into the first, or into every one, block by block."""
    ufunc, dtype = UFUNCS[op], accumulating_dtype(chunks[0].dtype)
    with np.errstate(all="ignore"):  # infinities and NaN are values, as in programs
        for start in range(0, chunks[0].size, BLOCK):
            blocks = [chunk[start : start + BLOCK] for chunk in chunks]
            total = _total(blocks, ufunc, dtype, average=op == "avg")
            for block in blocks if everywhere else blocks[:1]:
                if block is not total:
                    block[...] = total


def _total(blocks: list[NDArray[Any]], ufunc: np.ufunc, dtype: np.dtype[Any], average: bool) -> NDArray[Any]:
    """Return the combination of blocks, in the first one if it has the dtype to accumulate in."""
    total = blocks[0].astype(dtype, copy=False)
    for block in blocks[1:]:
        ufunc(total, block.astype(dtype, copy=False), out=total)
    if average:
        total /= len(blocks)
    return total
