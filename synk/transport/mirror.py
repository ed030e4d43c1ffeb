"""Find what has changed in the segments that a command reads, for machines that do not share their memory.

    steps -> refs_in -> Mirror.fills: blocks whose digest is another -> Relay -> Mirror of a leader: written

Of what scripts write into `Data` through arrays that were handed out, nobody is told. So blocks are compared
by their digests, unless their owner vouches that nothing was written: see `SegmentTable.stamp`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from synk.memory.segments import ON_DISK, SegmentTable
from synk.values.messages import ArrayRef, Fill, Step

BLOCK_BYTES = 1 << 18

Digests = dict[tuple[int, int], bytes]  # by segment, and the offset of a block


class Mirror:
    """The bytes of the master's segments that all other machines have."""

    def __init__(self, segments: SegmentTable):
        self.segments = segments
        self._digests: Digests = {}
        self._stamps: dict[ArrayRef, Any] = {}  # under which it was last looked at
        self._steps: tuple[Any, ...] = ()
        self._refs: list[ArrayRef] = []

    def fills(self, steps: tuple[Any, ...]) -> tuple[Fill, ...]:
        """Return the blocks that machines lack of the arrays in steps, and take it that they get them.

        Left by an exception, it takes nothing.
        """
        if steps is not self._steps:
            self._refs, self._steps = list(dict.fromkeys(refs_in(steps))), steps
        digests: Digests = {}
        stamps: dict[ArrayRef, Any] = {}
        fills = [fill for ref in self._refs for fill in self._changed(ref, digests, stamps)]
        self._digests.update(digests)
        self._stamps.update(stamps)
        return tuple(fills)

    def _changed(self, ref: ArrayRef, digests: Digests, stamps: dict[ArrayRef, Any]) -> Iterator[Fill]:
        stamp = self.segments.stamp(ref.segment)
        if stamp == ON_DISK or (stamp is not None and self._stamps.get(ref) == stamp):
            return
        content = self.segments.array(ref).reshape(-1).view(np.uint8)
        for start in range(0, content.size, BLOCK_BYTES):
            block = content[start : start + BLOCK_BYTES]
            key, digest = (
                (ref.segment, ref.offset + start),
                hashlib.blake2b(block.data, digest_size=16).digest(),
            )
            if self._digests.get(key) != digest:
                digests[key] = digest
                yield Fill(ref.segment, ref.offset + start, block)
        stamps[ref] = stamp

    def forget(self, segment: int) -> None:
        """Drop what is known of a segment that is no more."""
        for key in [key for key in self._digests if key[0] == segment]:
            del self._digests[key]
        for ref in [ref for ref in self._stamps if ref.segment == segment]:
            del self._stamps[ref]


def refs_in(value: Any) -> Iterator[ArrayRef]:
    """Yield the arrays in shared memory that steps of a command read."""
    if isinstance(value, ArrayRef):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from refs_in(item)
    elif isinstance(value, Step):
        for name in value.__slots__:
            yield from refs_in(getattr(value, name))


def write(fills: Iterable[Fill], segments: SegmentTable) -> None:
    """Write what has changed into the segments of this machine."""
    for fill in fills:
        content = np.frombuffer(fill.bytes, np.uint8)
        segments[fill.segment].array(np.uint8, (content.size,), fill.offset)[...] = content
