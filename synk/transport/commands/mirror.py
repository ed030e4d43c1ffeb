"""Find the blocks of shared memory that have changed on the master's machine, to send them to other machines.

    steps -> parts_in -> Mirror.fills: blocks with another digest than before -> Relay -> a leader writes them

A script can write into the array of a `Data` without a call of synk. So blocks are compared by their digests,
unless the owner of the segment vouches that nothing was written: see `SegmentTable.stamp`. A machine gets
only blocks that its ranks read in the command: of rows that are scattered in order, those with rows of its
ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from synk.transport.memory.segments import ON_DISK, SegmentTable
from synk.values import messages
from synk.values.machine import Machine
from synk.values.messages import ArrayRef, Fill

BLOCK_BYTES = 1 << 18


class Mirror:
    """A record of the blocks of the master's segments that each other machine has."""

    def __init__(self, segments: SegmentTable, machines: Sequence[Machine]):
        self.segments = segments
        self._copies = [MachineBytes() for _ in machines]
        self._readers = [messages.Readers(one.ranks, one.n_ranks, (0, 0)) for one in machines]
        self._looks: list[list[Look]] = []  # for each machine, the looks whose fills are not sent yet
        self._known: tuple[Any, ...] = (None,)  # the steps and rows of the last command
        self._parts: list[list[messages.Part]] = []  # for each machine, the parts that its ranks read in it

    def fills(self, command: messages.Command) -> list[tuple[messages.Fill, ...]]:
        """Return for each machine the blocks that its ranks read but it lacks; call `sent` afterwards."""
        digests: dict[Any, bytes] = {}  # of the present contents of blocks
        self._looks = [
            [look(part, self.segments, copy, digests) for part in parts]
            for copy, parts in zip(self._copies, self._parts_of(command), strict=True)
        ]
        return [tuple([fill for one in looks for fill in one.fills]) for looks in self._looks]

    def sent(self) -> None:
        """Record that the machines have got the blocks that `fills` returned last."""
        for copy, looks in zip(self._copies, self._looks, strict=True):
            for one in looks:
                copy.take(one)
        self._looks = [[] for _ in self._copies]

    def _parts_of(self, command: messages.Command) -> list[list[messages.Part]]:
        steps, told = command.steps, (command.start, command.stop)
        if steps is not self._known[0] or told != self._known[1]:
            self._parts = [parts_read(steps, one._replace(command_rows=told)) for one in self._readers]
            self._known = steps, told
        return self._parts

    def forget(self, segment: int) -> None:
        """Drop the record of a segment that was freed."""
        for copy in self._copies:
            copy.digests.pop(segment, None)
            copy.looked_at.pop(segment, None)


def parts_read(steps: tuple[Any, ...], readers: messages.Readers) -> list[messages.Part]:
    """Return the parts of arrays that ``readers`` read in the steps; one read whole comes only once."""
    parts = dict.fromkeys(messages.parts_in(steps, readers))
    whole = {part.ref for part in parts if part.rows is None}
    return [part for part in parts if part.rows is None or part.ref not in whole]


class MachineBytes:
    """A record of the blocks that one machine has.

    Attributes
    ----------
    digests : dict
        By segment and offset, the digest of the block that the machine has.
    looked_at : dict
        By segment and array, the last stamp of the segment and the blocks that were compared under it.
    """

    def __init__(self) -> None:
        self.digests: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self.looked_at: defaultdict[int, dict[ArrayRef, tuple[Any, set[int]]]] = defaultdict(dict)

    def blocks_under(self, ref: ArrayRef, stamp: Any) -> set[int]:
        """Return the blocks of an array that were compared under this stamp, which need not be again.

        A stamp of None means that the blocks may have changed, so there are none.
        """
        known, blocks = self.looked_at[ref.segment].get(ref, (None, set()))
        return blocks if stamp is not None and known == stamp else set()

    def take(self, look: Look) -> None:
        """Record that the machine has got the blocks that a look has found missing."""
        ref = look.ref
        self.digests[ref.segment].update(look.digests)
        if look.stamp is not None and look.blocks:
            blocks = self.blocks_under(ref, look.stamp) | look.blocks
            self.looked_at[ref.segment][ref] = look.stamp, blocks


class Look(NamedTuple):
    """The comparison of a part of an array with the blocks that a machine has."""

    ref: ArrayRef
    stamp: Any
    blocks: set[int]  # the offsets, from the start of the array, of the blocks that were compared
    digests: dict[int, bytes]  # by offset in the segment, of the blocks that the machine lacks
    fills: list[Fill]


def look(part: messages.Part, segments: SegmentTable, copy: MachineBytes, known: dict[Any, bytes]) -> Look:
    """Find the blocks of a part of an array that a machine lacks.

    ``copy`` records the blocks that it has. ``known`` has digests of present contents that looks for other
    machines have computed; this one adds its own.
    """
    ref, stamp = part.ref, segments.stamp(part.ref.segment)
    found = Look(ref, stamp, set(), {}, [])
    seen = copy.blocks_under(ref, stamp)
    if stamp == ON_DISK or len(seen) == len(_blocks(messages.Part(ref))):
        return found
    found.blocks.update(start for start in _blocks(part) if start not in seen)
    content = segments.array(ref).reshape(-1).view(np.uint8)
    for start in sorted(found.blocks):
        block, offset = content[start : start + BLOCK_BYTES], ref.offset + start
        key = ref.segment, offset, block.size, stamp  # threads may write between two looks
        digest = known.get(key) or hashlib.blake2b(block.data, digest_size=16).digest()
        known[key] = digest
        if copy.digests[ref.segment].get(offset) != digest:
            found.digests[offset] = digest
            found.fills.append(Fill(ref.segment, offset, block))
    return found


def _blocks(part: messages.Part) -> range:
    """Return the offsets, from the start of the array, of the blocks that contain a part of it."""
    ref, rows = part
    itemsize = np.dtype(ref.dtype).itemsize
    if rows is None or not ref.shape:
        return range(0, itemsize * math.prod(ref.shape), BLOCK_BYTES)
    row = itemsize * math.prod(ref.shape[1:])
    return range(row * rows[0] // BLOCK_BYTES * BLOCK_BYTES, row * min(rows[1], ref.shape[0]), BLOCK_BYTES)


def write(fills: Iterable[Fill], segments: SegmentTable) -> None:
    """Write the bytes that the master has sent into the segments of this machine."""
    for fill in fills:
        content = np.frombuffer(fill.bytes, np.uint8)
        segments[fill.segment].array(np.uint8, (content.size,), fill.offset)[...] = content
