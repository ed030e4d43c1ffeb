"""The arena in which collectives exchange arrays that are not stored in shared memory.

It grows in the middle of a command: all ranks see that it is too small, and the workers wait for the new one
on their channels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from synk.transport.memory.segments import SegmentTable
from synk.transport.memory.shm import Segment


class Arena:
    """The master's arena; in the context ``growth()`` a message may be sent in the middle of a command."""

    def __init__(self, segments: SegmentTable, growth: Callable[[], AbstractContextManager[None]]):
        self._segments = segments
        self._growth = growth
        self._number: int | None = None

    def grow(self, nbytes: int) -> Segment:
        """Make a larger arena; every rank waits for it, or for this one to fail."""
        with self._growth():
            number = self._segments.allocate(nbytes)
        if self._number is not None:
            self._segments.release(self._number)
        self._number = number
        return self._segments[number]

    def drop(self) -> None:
        """Let go of the arena in this rank: the others have ended."""
        if self._number is not None:
            self._segments.drop(self._number)
            self._number = None
