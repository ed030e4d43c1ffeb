"""Compare, before a collective, what the ranks bring to it; raise an error on all of them if it does not fit.

words -> control block -> barrier -> compare words; they are parsed only if they differ, or to copy arrays

Each rank describes its part in a header of a few words in shared memory. A `Meeting` compares headers for
communicators whose arrays go another way.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple

import numpy as np

from synk.transport.commands.sync import Barrier
from synk.values.errors import CollectiveMismatch

ARENA, SHARED = range(2)  # the first words of a header; then come the fields of `SAID`, and the shape
SAID = struct.Struct("<16s8s8sq")  # kind, operation, dtype, number of dimensions


class Header(NamedTuple):
    """The description of one rank's part in a collective, for the other ranks."""

    kind: str
    op: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_shared: bool  # whether the arrays of all ranks are in shared memory, as far as this rank knows
    arena: int  # bytes of the arena that this rank has mapped

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
    """Return the words of a header from SHARED on, which must be the same on all ranks."""
    said = SAID.pack(kind.encode(), op.encode(), dtype.str.encode(), len(shape))
    return memoryview(array("q", [is_shared, *memoryview(said).cast("q"), *shape]))


def check_equal(headers: list[Header], shapes: bool) -> None:
    """Raise CollectiveMismatch unless all headers are alike; their shapes may differ unless ``shapes``."""
    if len({(header.kind, header.op, header.dtype, shapes and header.shape) for header in headers}) > 1:
        raise CollectiveMismatch(
            "ranks disagree on a collective: "
            + "; ".join(f"rank {rank}: {header}" for rank, header in enumerate(headers))
        )


class Met(NamedTuple):
    """The shapes of all ranks' arrays, and the numbers of their links, in rank order."""

    shapes: list[tuple[int, ...]]
    links: list[int]  # 0 for a rank without a link


class Meeting:
    """The comparison of headers before a collective whose arrays go another way than shared memory.

    After it, all ranks must pass a barrier once more before any of them writes its next header.
    """

    def __init__(self, barrier: Barrier):
        self._barrier = barrier
        # A view of the words is taken anew each time: one that is kept would keep them mapped after the run.
        self._header = barrier.control.header

    def agree(self, kind: str, op: str, array: Any, link: int, shapes: bool = True) -> Met:
        """Compare this rank's collective with the others'; return the shapes and links of all ranks.

        ``array`` may be of any module, and ``link`` is a number for the others to know. Raises
        CollectiveMismatch on every rank if collectives, operations or dtypes differ, or with ``shapes`` the
        shapes.
        """
        words = words_of(kind, op, array.dtype, array.shape, is_shared=False)
        end = SHARED + len(words)
        mine = self._header(self._barrier.place)
        # There is no arena here, so its word in the header has the number of the link.
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
