"""Where shared variables live that take part in collectives: in shared memory, seen by every rank.

A variable moves at its first collective and stays: programs update it in place, so collectives find
all ranks' values without copying them anywhere first.

    Homes.ensure (master) -> Attach per rank, Settle -> RankVariables.move_in on every rank

Imports ``messages``, ``segments`` and ``variables``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from synk import messages
from synk.errors import SharedMemoryFull
from synk.segments import SegmentTable
from synk.variables import RankVariables


class Homes:
    """The master's record of which shared variables live in shared memory.

    Parameters
    ----------
    segments : SegmentTable
        The master's.
    post : callable
        ``post(message)`` reaches all workers.
    own : RankVariables
        Rank 0's.
    n_ranks : int
    """

    def __init__(self, segments: SegmentTable, post: Any, own: RankVariables, n_ranks: int):
        self._segments = segments
        self._post = post
        self._own = own
        self._n_ranks = n_ranks
        self._homes: dict[int, tuple[messages.ArrayRef, ...]] = {}
        own.on_drop = self.release

    def ensure(self, identities: Iterable[int]) -> None:
        """Move variables to shared memory, unless they live there or there is no room."""
        if self._n_ranks == 1:
            return
        for identity in identities:
            value = self._own.value(identity)
            known = self._homes.get(identity)
            if known is None or (known[0].dtype, known[0].shape) != (value.dtype.str, value.shape):
                self._move(identity, value)

    def _move(self, identity: int, value: np.ndarray[Any, Any]) -> None:
        self.release(identity)
        try:
            numbers = self._allocate(value.nbytes)
        except SharedMemoryFull:
            return  # collectives stage it then
        refs = tuple(messages.ArrayRef(number, value.dtype.str, value.shape) for number in numbers)
        self._homes[identity] = refs
        message = messages.MoveIn(identity, refs)
        self._post(message)
        self._own.move_in(identity, [self._segments.array(ref) for ref in refs])

    def _allocate(self, nbytes: int) -> list[int]:
        numbers: list[int] = []
        try:
            for _ in range(self._n_ranks):
                numbers.append(self._segments.allocate(nbytes))
        except BaseException:
            for number in numbers:
                self._segments.release(number)
            raise
        return numbers

    def moves(self) -> list[messages.MoveIn]:
        """Return what tells a new worker where variables live."""
        return [messages.MoveIn(identity, refs) for identity, refs in self._homes.items()]

    def release(self, identity: int) -> None:
        """Give up the home of a variable; safe in finalizers, at any moment."""
        for ref in self._homes.pop(identity, ()):
            self._segments.release(ref.segment)
