"""What ranks tell each other before a collective: the same words from all, or nobody goes on.

words -> control block -> barrier -> compare words; parsed only where they differ, or to stage
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np

from synk.values.errors import CollectiveMismatch
from synk.values.reduction import OPERATIONS

KINDS = ("all_reduce", "reduce", "reduce in place", "broadcast", "all_gather", "gather")
ARENA, HOME, KIND, OP, DTYPE, NDIM, SHAPE = range(7)  # words; what follows SHAPE are lengths


class Header(NamedTuple):
    """What one rank brings to a collective."""

    kind: str
    op: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    home: bool  # whether this rank sees the arrays of all, and its own is among them
    arena: int  # bytes of the arena that this rank has

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.kind} {self.op!r} of {self.dtype}{list(self.shape)}"

    @classmethod
    def read(cls, words: memoryview) -> Header:
        dtype = np.dtype(words[DTYPE].to_bytes(8, "little").rstrip(b"\0").decode())
        shape = tuple(words[SHAPE : SHAPE + words[NDIM]])
        return cls(KINDS[words[KIND]], OPERATIONS[words[OP]], dtype, shape, bool(words[HOME]), words[ARENA])


def words_of(kind: str, op: str, dtype: np.dtype[Any], shape: tuple[int, ...], home: bool) -> memoryview:
    """Return the words from HOME on: what all ranks must have in common."""
    name = int.from_bytes(dtype.str.encode(), "little")
    return memoryview(array("q", [home, KINDS.index(kind), OPERATIONS.index(op), name, len(shape), *shape]))


def check_equal(headers: list[Header], shapes: bool) -> None:
    """Raise CollectiveMismatch unless ranks bring the same, up to their shapes if these may differ."""
    if len({(header.kind, header.op, header.dtype, shapes and header.shape) for header in headers}) > 1:
        raise CollectiveMismatch(
            "ranks disagree on a collective: "
            + "; ".join(f"rank {rank}: {header}" for rank, header in enumerate(headers))
        )
