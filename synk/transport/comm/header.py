"""Compare what ranks are about to do before a collective: the same words from all, or nobody goes on.

words -> control block -> barrier -> compare words; parsed only where they differ, or to stage

A `Meeting` does so for communicators whose data moves elsewhere: only words pass there.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple

import numpy as np

from synk.transport.commands.sync import Barrier
from synk.values.errors import CollectiveMismatch

ARENA, SHARED = range(2)  # words; behind them stands what `SAID` has, and then lengths
SAID = struct.Struct("<16s8s8sq")  # kind, operation, dtype, number of dimensions


class Header(NamedTuple):
    """One rank's part in a collective, as it tells the others."""

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


class Met(NamedTuple):
    """The answers of all ranks, in rank order."""

    shapes: list[tuple[int, ...]]
    links: list[int]  # the number of each rank's link, 0 for none


class Meeting:
    """Headers by which the ranks compare the collective that each is about to enter.

    All ranks must meet at a barrier once more before any of them writes its next words.
    """

    def __init__(self, barrier: Barrier):
        self._barrier = barrier
        # Asked for again each time: views of the words would keep them mapped beyond the run.
        self._header = barrier.control.header

    def agree(self, kind: str, op: str, array: Any, link: int, shapes: bool = True) -> Met:
        """Return the shapes of all ranks' arrays, which may be of any module, and the numbers of their links.

        With ``shapes``, shapes must be equal. Raises CollectiveMismatch on every rank if ranks bring other
        things.
        """
        words = words_of(kind, op, array.dtype, array.shape, is_shared=False)
        end = SHARED + len(words)
        mine = self._header(self._barrier.place)
        # The place of an arena's length: here ranks have links instead.
        mine[ARENA] = link
        mine[SHARED:end] = words
        self._barrier.wait()
        headers = [self._header(rank) for rank in range(self._barrier.n_places)]
        links = [header[ARENA] for header in headers]
        if all(header[SHARED:end] == words for header in headers):
            return Met([tuple(array.shape)] * len(headers), links)
        brought = [Header.read(header) for header in headers]
        check_equal(brought, shapes)
        return Met([header.shape for header in brought], links)
