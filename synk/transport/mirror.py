"""Find what has changed in the segments that a command reads, for machines that do not share their memory.

    steps -> parts_in -> Mirror.fills: blocks whose digest is another -> Relay -> a leader writes them

Of what scripts write into `Data` through arrays that were handed out, nobody is told. So blocks are compared
by their digests, unless their owner vouches that nothing was written: see `SegmentTable.stamp`. A machine
gets what its ranks read: of what is scattered in order, its rows and what shares a block with them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from synk.memory.segments import ON_DISK, SegmentTable
from synk.values import messages
from synk.values.machine import Machine
from synk.values.messages import ArrayRef, Fill

BLOCK_BYTES = 1 << 18

Digests = dict[tuple[int, int], bytes]  # by segment, and the offset of a block


class Mirror:
    """The bytes of the master's segments that other machines have."""

    def __init__(self, segments: SegmentTable, machines: Sequence[Machine]):
        self.segments = segments
        self._copies = [Copy() for _ in machines]
        self._readers = [messages.Readers(one.ranks, one.n_ranks, (0, 0)) for one in machines]
        self._known: tuple[Any, ...] = ()
        self._parts: list[list[messages.Part]] = []  # by machine

    def fills(self, command: messages.Command) -> list[tuple[messages.Fill, ...]]:
        """Return the blocks that each machine lacks of what its ranks read, and take it that it gets them.

        Left by an exception, it takes nothing.
        """
        self._read_by(command)
        digests: Digests = {}  # of what is there now
        looks = [
            (copy, [Look(part, self.segments, copy, digests) for part in parts])
            for copy, parts in zip(self._copies, self._parts, strict=True)
        ]
        for copy, all_looks in looks:
            for look in all_looks:
                copy.take(look)
        return [tuple([fill for look in all_looks for fill in look.fills]) for _, all_looks in looks]

    def _read_by(self, command: messages.Command) -> None:
        steps, told = known = command.steps, (command.start, command.stop)
        if not self._known or steps is not self._known[0] or told != self._known[1]:
            readers = [one._replace(told=told) for one in self._readers]
            self._parts = [list(dict.fromkeys(messages.parts_in(steps, one))) for one in readers]
            self._known = known

    def forget(self, segment: int) -> None:
        """Drop what is known of a segment that is no more."""
        for copy in self._copies:
            copy.forget(segment)


class Copy:
    """The bytes that one machine has.

    Attributes
    ----------
    digests : dict
        By segment and offset, of blocks.
    looked_at : dict
        By array, the stamp under which blocks were looked at, and which.
    """

    def __init__(self) -> None:
        self.digests: Digests = {}
        self.looked_at: dict[ArrayRef, tuple[Any, set[int]]] = {}

    def blocks_under(self, ref: ArrayRef, stamp: Any) -> set[int]:
        """Return the blocks that were looked at under a stamp."""
        known, blocks = self.looked_at.get(ref, (None, set()))
        return blocks if stamp is not None and known == stamp else set()

    def take(self, look: Look) -> None:
        """Take it that the machine gets what it lacked."""
        self.digests.update(look.digests)
        if look.stamp is not None and look.blocks:
            self.looked_at[look.ref] = look.stamp, self.blocks_under(look.ref, look.stamp) | look.blocks

    def forget(self, segment: int) -> None:
        """Drop what is known of a segment."""
        for key in [key for key in self.digests if key[0] == segment]:
            del self.digests[key]
        for ref in [ref for ref in self.looked_at if ref.segment == segment]:
            del self.looked_at[ref]


class Look:
    """A look at a part of an array: the blocks of it that a machine lacks.

    Blocks are counted from the beginning of the array, whatever rows are read. ``known`` are digests of what
    the array holds now, to which those are added that this one computes.
    """

    def __init__(self, part: messages.Part, segments: SegmentTable, copy: Copy, known: Digests):
        self.ref, self.stamp = part.ref, segments.stamp(part.ref.segment)
        self.fills: list[messages.Fill] = []
        self.digests: Digests = {}
        self.blocks: set[int] = set()  # that are looked at
        if self.stamp == ON_DISK:
            return
        seen = copy.blocks_under(part.ref, self.stamp)
        if len(seen) == len(_blocks(messages.Part(part.ref))):
            return
        self.blocks.update(start for start in _blocks(part) if start not in seen)
        content = segments.array(part.ref).reshape(-1).view(np.uint8)
        for start in sorted(self.blocks):
            key, block = (part.ref.segment, part.ref.offset + start), content[start : start + BLOCK_BYTES]
            digest = known.get(key) or hashlib.blake2b(block.data, digest_size=16).digest()
            known[key] = digest
            if copy.digests.get(key) != digest:
                self.digests[key] = digest
                self.fills.append(messages.Fill(*key, block))


def _blocks(part: messages.Part) -> range:
    """Return where the blocks begin that a part of an array is in."""
    ref, rows = part
    itemsize = np.dtype(ref.dtype).itemsize
    if rows is None or not ref.shape:
        return range(0, itemsize * math.prod(ref.shape), BLOCK_BYTES)
    row = itemsize * math.prod(ref.shape[1:])
    return range(row * rows[0] // BLOCK_BYTES * BLOCK_BYTES, row * min(rows[1], ref.shape[0]), BLOCK_BYTES)


def refs_in(value: Any) -> Iterator[ArrayRef]:
    """Yield the arrays in shared memory that steps of a command refer to, whoever reads them."""
    if isinstance(value, ArrayRef):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from refs_in(item)
    elif isinstance(value, messages.Step):
        for name in value.__slots__:
            yield from refs_in(getattr(value, name))


def write(fills: Iterable[Fill], segments: SegmentTable) -> None:
    """Write what has changed into the segments of this machine."""
    for fill in fills:
        content = np.frombuffer(fill.bytes, np.uint8)
        segments[fill.segment].array(np.uint8, (content.size,), fill.offset)[...] = content
