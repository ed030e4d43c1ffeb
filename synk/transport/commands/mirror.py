"""Find what has changed in the segments that a command reads, for machines that do not share their memory.

    steps -> parts_in -> Mirror.fills: blocks whose digest is another -> Relay -> a leader writes them

Of what scripts write into `Data` through arrays that were handed out, nobody is told. So blocks are compared
by their digests, unless their owner vouches that nothing was written: see `SegmentTable.stamp`. A machine
gets what its ranks read: of what is scattered in order, its rows and what shares a block with them.
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
    """The bytes of the master's segments that other machines have."""

    def __init__(self, segments: SegmentTable, machines: Sequence[Machine]):
        self.segments = segments
        self._copies = [MachineBytes() for _ in machines]
        self._readers = [messages.Readers(one.ranks, one.n_ranks, (0, 0)) for one in machines]
        self._looks: list[list[Look]] = []  # by machine, at what is to be sent
        self._known: tuple[Any, ...] = (None,)
        self._parts: list[list[messages.Part]] = []  # of what is known, by machine

    def fills(self, command: messages.Command) -> list[tuple[messages.Fill, ...]]:
        """Return the blocks that each machine lacks of what its ranks read; call `sent` when it gets them."""
        digests: dict[Any, bytes] = {}  # of what is there now
        self._looks = [
            [look(part, self.segments, copy, digests) for part in parts]
            for copy, parts in zip(self._copies, self._parts_of(command), strict=True)
        ]
        return [tuple([fill for one in looks for fill in one.fills]) for looks in self._looks]

    def sent(self) -> None:
        """Take it that machines have got the last fills."""
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
        """Drop what is known of a segment that is no more."""
        for copy in self._copies:
            copy.digests.pop(segment, None)
            copy.looked_at.pop(segment, None)


def parts_read(steps: tuple[Any, ...], readers: messages.Readers) -> list[messages.Part]:
    """Return the parts of arrays that steps have ranks read; an array that is read whole comes once."""
    parts = dict.fromkeys(messages.parts_in(steps, readers))
    whole = {part.ref for part in parts if part.rows is None}
    return [part for part in parts if part.rows is None or part.ref not in whole]


class MachineBytes:
    """The bytes that one machine has, by segment.

    Attributes
    ----------
    digests : dict
        Of blocks, by their offsets.
    looked_at : dict
        By array, the stamp under which blocks were looked at, and which.
    """

    def __init__(self) -> None:
        self.digests: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self.looked_at: defaultdict[int, dict[ArrayRef, tuple[Any, set[int]]]] = defaultdict(dict)

    def blocks_under(self, ref: ArrayRef, stamp: Any) -> set[int]:
        """Return the blocks that were looked at under a stamp; one that is None does not last."""
        known, blocks = self.looked_at[ref.segment].get(ref, (None, set()))
        return blocks if stamp is not None and known == stamp else set()

    def take(self, look: Look) -> None:
        """Take it that the machine has got what it lacked."""
        ref = look.ref
        self.digests[ref.segment].update(look.digests)
        if look.stamp is not None and look.blocks:
            blocks = self.blocks_under(ref, look.stamp) | look.blocks
            self.looked_at[ref.segment][ref] = look.stamp, blocks


class Look(NamedTuple):
    """A look at a part of an array."""

    ref: ArrayRef
    stamp: Any
    blocks: set[int]  # that were looked at: where they begin in the array, whatever rows are read
    digests: dict[int, bytes]  # of those that the machine lacks, by their offsets
    fills: list[Fill]


def look(part: messages.Part, segments: SegmentTable, copy: MachineBytes, known: dict[Any, bytes]) -> Look:
    """Find the blocks of a part of an array that a machine lacks.

    ``known`` are digests of what the array holds now, to which those are added that this one computes.
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
    """Return where the blocks begin that a part of an array is in."""
    ref, rows = part
    itemsize = np.dtype(ref.dtype).itemsize
    if rows is None or not ref.shape:
        return range(0, itemsize * math.prod(ref.shape), BLOCK_BYTES)
    row = itemsize * math.prod(ref.shape[1:])
    return range(row * rows[0] // BLOCK_BYTES * BLOCK_BYTES, row * min(rows[1], ref.shape[0]), BLOCK_BYTES)


def write(fills: Iterable[Fill], segments: SegmentTable) -> None:
    """Write what has changed into the segments of this machine."""
    for fill in fills:
        content = np.frombuffer(fill.bytes, np.uint8)
        segments[fill.segment].array(np.uint8, (content.size,), fill.offset)[...] = content
