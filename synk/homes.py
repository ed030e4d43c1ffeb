"""Where shared variables live that take part in collectives: in shared memory, seen by every rank.

A variable moves at its first collective and stays: programs update it in place, so collectives find
all ranks' values without copying them anywhere first. Each rank's home has its own shape, since what
is scattered need not divide evenly.

    Homes.ensure (master) -> Attach per rank, MoveIn -> RankVariables.move_in on every rank

Imports ``messages``, ``segments`` and ``variables``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from synk import messages
from synk.errors import SharedMemoryFull
from synk.memory.segments import SegmentTable
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
    wanted : bool
        Whether variables are to live there at all. Those on GPUs are not: NCCL moves them, or they are
        staged, and a home would cost memory and copies.
    """

    def __init__(
        self, segments: SegmentTable, post: Any, own: RankVariables, n_ranks: int, wanted: bool = True
    ):
        self._segments = segments
        self._post = post
        self._own = own
        self._n_ranks = n_ranks
        self._wanted = wanted and n_ranks > 1
        self._homes: dict[int, tuple[messages.ArrayRef, ...]] = {}
        self._outgrown: set[int] = set()
        own.on_drop = self.release

    def ensure(self, identities: Iterable[int], alike: bool = True) -> None:
        """Move variables to shared memory, unless they live there or there is no room.

        Parameters
        ----------
        identities : iterable of int
        alike : bool
            All ranks' values are to have the shape of rank 0's; else it is enough that this one fits.
        """
        if not self._wanted:
            return
        for identity in identities:
            value, known = self._own.value(identity), self._homes.get(identity)
            compared = () if known is None else known if alike or identity in self._outgrown else known[:1]
            if not compared or any(ref.shape != value.shape for ref in compared):
                self.place(identity, [value.shape] * self._n_ranks)

    def outgrown(self, identity: int) -> None:
        """Note that all ranks' values have one shape now, whatever their homes have."""
        self._outgrown.add(identity)

    def shapes(self, identity: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' homes; where there are none, those they would usually have."""
        known = self._homes.get(identity)
        if known is None:
            return [self._own.value(identity).shape] * self._n_ranks
        return [ref.shape for ref in known]

    def place(self, identity: int, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]] | None:
        """Give a variable homes of these shapes, by rank.

        Returns
        -------
        list of array or None
            The homes; None if there are to be none, or there is no room.
        """
        if not self._wanted:
            return None
        self._outgrown.discard(identity)
        known = self._homes.get(identity)
        there = known is not None and [ref.shape for ref in known] == list(shapes)
        if not there and not self._move(identity, shapes):
            return None
        places = self._own.places(identity)
        assert places is not None, "it has just moved"
        return places

    def settle(self, identity: int) -> None:
        """Let rank 0 take what is in its home as its value; the others do so by a step."""
        self._own.settle(identity)

    def _move(self, identity: int, shapes: Sequence[tuple[int, ...]]) -> bool:
        dtype = self._own.value(identity).dtype
        sizes = [math.prod(shape) * dtype.itemsize for shape in shapes]
        known = self._homes.get(identity, ())
        numbers = [ref.segment for ref in known]
        if not known or not all(map(self._suits, numbers, sizes)):
            try:
                numbers = self._allocate(sizes)
            except SharedMemoryFull:
                return False  # collectives stage it then
            self.release(identity)
        refs = tuple(
            messages.ArrayRef(number, dtype.str, shape) for number, shape in zip(numbers, shapes, strict=True)
        )
        self._homes[identity] = refs
        self._post(messages.MoveIn(identity, refs))
        self._own.move_in(identity, [self._segments.array(ref) for ref in refs])
        return True

    def _suits(self, number: int, nbytes: int) -> bool:
        """Tell whether a segment has room, and is not much too large."""
        return nbytes <= self._segments[number].nbytes <= 2 * nbytes

    def _allocate(self, sizes: Iterable[int]) -> list[int]:
        numbers: list[int] = []
        try:
            for nbytes in sizes:
                numbers.append(self._segments.allocate(nbytes))
        except BaseException:
            for number in numbers:
                self._segments.release(number)
            raise
        return numbers

    def has(self, identity: int) -> bool:
        """Return whether there are homes of a variable; only the master's word on it is the same for all."""
        return identity in self._homes

    def moves(self) -> list[messages.MoveIn]:
        """Return what tells a new worker where variables live."""
        return [messages.MoveIn(identity, refs) for identity, refs in self._homes.items()]

    def release_all(self) -> None:
        """Give up all homes: variables move anew when they next take part in a collective."""
        for identity in list(self._homes):
            self.release(identity)

    def release(self, identity: int) -> None:
        """Give up the home of a variable; safe in finalizers, at any moment."""
        self._outgrown.discard(identity)
        for ref in self._homes.pop(identity, ()):
            self._segments.release(ref.segment)
