"""What ranks tell each other before a collective: the same words from all, or nobody goes on.

words -> control block -> barrier -> compare words; parsed only where they differ, or to stage
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple

import numpy as np

from synk.values.errors import CollectiveMismatch

ARENA, SHARED = range(2)  # words; behind them stands what `SAID` has, and then lengths
SAID = struct.Struct("<16s8s8sq")  # kind, operation, dtype, number of dimensions


class Header(NamedTuple):
    """What one rank brings to a collective."""

    kind: str
    op: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_shared: bool  # whether this rank sees the arrays of all, and its own is among them
    arena: int  # bytes of the arena that this rank has

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.kind} {self.op!r} of {self.dtype}{list(self.shape)}"

    @classmethod
    def read(cls, words: memoryview) -> Header:
        *names, ndim = SAID.unpack_from(words, 8 * (SHARED + 1))
        kind, op, dtype = [name.rstrip(b"\0").decode() for name in names]
        start = SHARED + 1 + SAID.size // 8
        return cls(
            kind, op, np.dtype(dtype), tuple(words[start : start + ndim]), bool(words[SHARED]), words[ARENA]
        )


def words_of(kind: str, op: str, dtype: np.dtype[Any], shape: tuple[int, ...], is_shared: bool) -> memoryview:
    """Return the words from SHARED on: what all ranks must have in common."""
    said = SAID.pack(kind.encode(), op.encode(), dtype.str.encode(), len(shape))
    return memoryview(array("q", [is_shared, *memoryview(said).cast("q"), *shape]))


def check_equal(headers: list[Header], shapes: bool) -> None:
    """Raise CollectiveMismatch unless ranks bring the same, up to their shapes if these may differ."""
    if len({(header.kind, header.op, header.dtype, shapes and header.shape) for header in headers}) > 1:
        raise CollectiveMismatch(
            "ranks disagree on a collective: "
            + "; ".join(f"rank {rank}: {header}" for rank, header in enumerate(headers))
        )
