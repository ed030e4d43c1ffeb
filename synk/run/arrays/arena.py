"""The arena in which collectives exchange arrays that are not stored in shared memory.

The arena is one segment of shared memory. It may have to grow in the middle of a command: all ranks see that
it is too small, the master makes a larger one, and the workers wait for it on their channels.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from synk.transport.memory.segments import SegmentTable
from synk.transport.memory.shm import Segment


class Arena:
    """The master's arena.

    ``growth()`` returns a context in which the master may send a message in the middle of a command.
    """

    def __init__(self, segments: SegmentTable, growth: Callable[[], AbstractContextManager[None]]):
        self._segments = segments
        self._growth = growth
        self._number: int | None = None

    def grow(self, nbytes: int) -> Segment:
        """Make a larger arena, and return its segment; the workers wait for it, or until this rank fails."""
        with self._growth():
            number = self._segments.allocate(nbytes)
        if self._number is not None:
            self._segments.release(self._number)
        self._number = number
        return self._segments[number]

    def drop(self) -> None:
        """Release the arena in this process only, once the workers, which had it too, have ended."""
        if self._number is not None:
            self._segments.drop(self._number)
            self._number = None
