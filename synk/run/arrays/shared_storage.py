"""The master's record of where shared variables are stored in shared memory, which every rank maps.

A variable is stored there at its first collective and stays: programs update it in place, so collectives find
all ranks' values without copying them anywhere first. Each rank has an array of its own, and shapes may
differ, since scattered rows need not divide evenly.

Variables that a sharded update changes live there once: all ranks of the machine have the same array
(`SharedStorage.place_once`). Whatever else changes such a variable gives each rank an array of its own first:
collectives by `ensure` and `place`, functions by `separate`.

If there are several machines, each has its own copy of a block (a segment that variables share), of the same
number and length, with the arrays of its own ranks. The place of a rank is its number among the ranks of its
machine; ranks at the same place have their arrays at the same offset.

    SharedStorage.ensure (master) -> Attach per block, UseStorage per variable -> RankVariables.use_storage

Variables that are stored at the same time share segments, blocks of two MiB at most: a segment costs a
message, a descriptor and a page. A block is freed with the last variable in it, so a large variable has one
of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.transport.memory.segments import ALIGNMENT, SegmentTable, aligned
from synk.transport.processes.signals import hold_signals
from synk.values import messages
from synk.values.errors import SharedMemoryFull

BLOCK_BYTES = 1 << 20  # a block with this many bytes in use takes no further variable

Shapes = Sequence[tuple[int, ...]]  # by rank


class Extent(NamedTuple):
    """The bytes of a block that are reserved for a variable's value on the ranks at one place."""

    offset: int
    nbytes: int


class VectorOnce(NamedTuple):
    """Variables that live once, one behind the other in a vector."""

    dtype: str
    length: int  # elements
    places: tuple[tuple[int, int, tuple[int, ...]], ...]  # identity, first element, shape


class VectorsOnce(NamedTuple):
    """References to vectors in which variables live once."""

    vectors: tuple[messages.ArrayRef, ...]
    progress: messages.ArrayRef  # a row for each rank, where it counts what it has begun and ended


class VariableMemory(NamedTuple):
    """The places in memory of the arrays of one variable."""

    segment: int  # number of the block
    extents: tuple[Extent, ...]  # by place
    refs: tuple[messages.ArrayRef, ...]  # by rank: its array, in the extent of the rank's place


def divide_among_blocks(
    sizes: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, dict[int, tuple[Extent, ...]]]]:
    """Divide variables among blocks; ``sizes`` are the bytes that each needs, by place.

    Yields for each block its bytes, and for each variable in it the extents, by place.
    """
    end, block = 0, dict[int, tuple[Extent, ...]]()
    for identity, of_places in sizes.items():
        reserved = [_reserved(nbytes) for nbytes in of_places]
        total = sum(reserved)
        if total >= BLOCK_BYTES:
            yield total, {identity: _extents(0, reserved)}
            continue
        block[identity] = _extents(end, reserved)
        end += total
        if end >= BLOCK_BYTES:
            yield end, block
            end, block = 0, {}
    if block:
        yield end, block


def _nbytes(vector: VectorOnce) -> int:
    return vector.length * np.dtype(vector.dtype).itemsize


def _extents(start: int, sizes: Sequence[int]) -> tuple[Extent, ...]:
    """Return extents of these sizes, one behind the other from byte ``start``."""
    stops = itertools.accumulate(sizes, initial=start)
    return tuple([Extent(offset, nbytes) for offset, nbytes in zip(stops, sizes, strict=False)])


def _reserved(nbytes: int) -> int:
    """Return the bytes to reserve for an array: at least one, so that no two arrays have the same offset."""
    return aligned(max(1, nbytes))


class SharedStorage:
    """The master's record of which shared variables are stored in shared memory, and where.

    ``post(message)`` sends a message to all workers. ``is_used`` is False if values are not on the host: a
    copy in shared memory would cost memory and time.
    ``on_release(identity)`` is called for each variable that leaves its place, or begins to live once.
    """

    def __init__(
        self,
        segments: SegmentTable,
        post: Callable[..., None],
        own: RankVariables,
        ranks: RanksByMachine,
        is_used: bool,
        on_release: Callable[[int], None],
    ):
        self._segments = segments
        self._post = post
        self._own = own
        self._ranks = ranks
        self._is_used = is_used
        self._on_release = on_release
        self._placements: dict[int, VariableMemory] = {}  # by variable
        self._in_segment: dict[int, set[int]] = {}  # by segment: the variables stored in it
        self._once: set[int] = set()  # variables of which all ranks have the same array
        self._reshaped: set[int] = set()  # variables whose values no longer have the shapes of their arrays
        own.on_drop = self.release

    def ensure(self, identities: Iterable[int], alike: bool = True) -> None:
        """Store variables in shared memory if they are not there yet and there is room.

        If ``alike``, the arrays of all ranks must have the shape of rank 0's value; else only rank 0's array
        must.
        """
        wanted = {}
        for identity in identities if self._is_used else ():
            shape = self._own.value(identity).shape
            known = None if identity in self._once else self._placements.get(identity)
            whole = alike or identity in self._reshaped
            compared = () if known is None else known.refs if whole else known.refs[:1]
            if not compared or any(ref.shape != shape for ref in compared):
                wanted[identity] = [shape] * self._ranks.n_ranks
        self._store(wanted)

    def stored_arrays(self, identities: Iterable[int]) -> list[tuple[list[Any], Any]] | None:
        """Return for each variable PyTensor's storage list on rank 0, and the array that `ensure` put there.

        While each storage holds its array, `ensure` need not be called again. Return None if it must be
        called every time, because there was no room for a variable.
        """
        if not self._is_used:
            return []
        stored_arrays = []
        for identity in identities:
            shared = self._own.storage(identity)
            if shared is None:  # there was no room
                return None
            stored_arrays.append((self._own[identity].container.storage, shared[0]))
        return stored_arrays

    def note_reshaped(self, identity: int) -> None:
        """Note that a collective has given all ranks values of one shape, which their arrays may not have."""
        self._reshaped.add(identity)

    def shapes(self, identity: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' arrays; if there are none, that of rank 0's value for each rank."""
        known = self._placements.get(identity)
        if known is None:
            return [self._own.value(identity).shape] * self._ranks.n_ranks
        return [ref.shape for ref in known.refs]

    def place(self, wanted: Mapping[int, Shapes]) -> list[list[NDArray[Any] | None] | None]:
        """Give variables arrays of the ``wanted`` shapes; return the arrays by variable, then by rank.

        A variable has None instead of a list if shared memory is not used or has no room. In a list, the
        ranks of other machines have None, as this process does not see their arrays.
        """
        if self._is_used:
            self._reshaped.difference_update(wanted)
            self._store({n: shapes for n, shapes in wanted.items() if not self._has(n, shapes)})
        return [self._arrays(n) if self._has(n, shapes) else None for n, shapes in wanted.items()]

    def _arrays(self, identity: int) -> list[NDArray[Any] | None]:
        """Return the arrays of a variable, by rank; None for ranks of other machines."""
        here = list(self._own.storage(identity) or ())
        return [*here, *[None] * (self._ranks.n_ranks - len(here))]

    def _has(self, identity: int, shapes: Shapes) -> bool:
        """Tell whether a variable is stored in arrays of exactly these shapes."""
        known = None if identity in self._once else self._placements.get(identity)
        return known is not None and [ref.shape for ref in known.refs] == list(shapes)

    # --- variables that live once ------------------------------------------------------------------

    def place_once(self, vectors: Sequence[VectorOnce]) -> VectorsOnce | None:
        """Let variables live once, laid out in vectors; return references to the vectors.

        The variables must be equal on all ranks, and the ranks must be on one machine. Each rank copies its
        values there at the next call of `RankVariables.shared_arrays`. None if there is no room.
        """
        offsets = list(itertools.accumulate([_reserved(_nbytes(one)) for one in vectors], initial=0))
        first = self._placements.get(vectors[0].places[0][0])
        segment = first.segment if first is not None else -1
        refs = self._refs_once(segment, vectors, offsets)
        # A segment with further variables belongs to another layout, of which these may be the beginning.
        alone = self._in_segment.get(segment) == {identity for identity, _ in refs}
        if not (alone and all(self._is_once_at(identity, ref) for identity, ref in refs)):
            try:
                segment = self._segments.allocate(offsets[-1] + ALIGNMENT * self._ranks.n_ranks)
            except SharedMemoryFull:
                return None
            refs = self._refs_once(segment, vectors, offsets)
            with hold_signals():  # an exception halfway would leave this rank's values outside of the vectors
                self._store_once(segment, refs)
        found = [
            messages.ArrayRef(segment, one.dtype, (one.length,), offset)
            for one, offset in zip(vectors, offsets, strict=False)
        ]
        words = self._ranks.n_ranks, ALIGNMENT // 8
        return VectorsOnce(tuple(found), messages.ArrayRef(segment, "<i8", words, offsets[-1]))

    def _is_once_at(self, identity: int, ref: messages.ArrayRef) -> bool:
        return identity in self._once and self._placements[identity].refs[0] == ref

    def _refs_once(
        self, segment: int, vectors: Sequence[VectorOnce], offsets: Sequence[int]
    ) -> list[tuple[int, messages.ArrayRef]]:
        """Return the variables of vectors at these offsets, each with a reference to its array."""
        refs = []
        for one, offset in zip(vectors, offsets, strict=False):
            itemsize = np.dtype(one.dtype).itemsize
            for identity, start, shape in one.places:
                ref = messages.ArrayRef(segment, one.dtype, shape, offset + start * itemsize)
                refs.append((identity, ref))
        return refs

    def _store_once(self, segment: int, refs: Sequence[tuple[int, messages.ArrayRef]]) -> None:
        """Store variables at one place each for all ranks, and tell all ranks."""
        n_ranks = self._ranks.n_ranks
        self._in_segment[segment] = {identity for identity, _ in refs}
        for identity, ref in refs:
            self.release(identity)
            self._on_release(identity)  # also of those that were nowhere: functions update them in place
            self._placements[identity] = VariableMemory(segment, (), (ref,) * n_ranks)
        self._once.update(identity for identity, _ in refs)
        self._post(messages.Several(tuple([messages.UseStorage(one, (ref,) * n_ranks) for one, ref in refs])))
        for identity, ref in refs:
            self._own.use_storage(identity, [self._segments.array(ref)] * n_ranks, place=0)

    def separate(self, identities: Iterable[int]) -> None:
        """Give each rank its own copy of those variables that live once: each rank is about to change it."""
        once = tuple([identity for identity in identities if identity in self._once])
        if once:
            self._post(messages.LeaveStorage(once))
            self._own.leave_storage(once)
            for identity in once:
                self.release(identity)

    def separate_all(self) -> None:
        """Give each rank its own copy of all variables that live once."""
        self.separate(list(self._once))

    # --- where variables are -----------------------------------------------------------------------

    def take_stored(self, identity: int) -> None:
        """Make the stored array of rank 0 its value; the other ranks do so in a step of the command."""
        self._own.take_stored(identity)

    def _store(self, wanted: Mapping[int, Shapes]) -> None:
        """Store variables in arrays of the ``wanted`` shapes, as far as there is room, and tell all ranks."""
        self._reshaped.difference_update(wanted)
        sizes = {n: self._sizes_of(n, shapes) for n, shapes in wanted.items()}
        placed = {n: self._placements[n] for n in wanted if self._has_room_for(n, sizes[n])}
        others = {n: of_ranks for n, of_ranks in sizes.items() if n not in placed}
        for nbytes, extents in divide_among_blocks(others):
            with suppress(SharedMemoryFull):  # collectives then copy these variables into staging buffers
                placed.update(self._allocate(nbytes, extents))
        # Those of which all ranks have the same array must leave it: a staging buffer goes back to each rank.
        self.separate(n for n in others if n not in placed)
        for n, placement in placed.items():
            self._placements[n] = placement._replace(refs=self._refs(n, placement, wanted[n]))
        use_storage = tuple([messages.UseStorage(n, self._placements[n].refs) for n in placed])
        if use_storage:
            self._post(messages.Several(use_storage))
        for message in use_storage:
            here = message.arrays[: self._ranks.sizes[0]]
            self._own.use_storage(message.identity, [self._segments.array(ref) for ref in here], place=0)

    def _refs(
        self, identity: int, placement: VariableMemory, shapes: Shapes
    ) -> tuple[messages.ArrayRef, ...]:
        """Return references to arrays of these shapes, by rank, in the extents of a placement."""
        dtype, segment = self._own.value(identity).dtype.str, placement.segment
        offsets = [placement.extents[place].offset for place in self._ranks.places]
        both = zip(shapes, offsets, strict=True)
        return tuple([messages.ArrayRef(segment, dtype, shape, offset) for shape, offset in both])

    def _sizes_of(self, identity: int, shapes: Shapes) -> list[int]:
        """Return by place how many bytes the largest array of a variable has at that place of any machine."""
        itemsize = self._own.value(identity).dtype.itemsize
        sizes = [0] * max(self._ranks.sizes)
        for place, shape in zip(self._ranks.places, shapes, strict=True):
            sizes[place] = max(sizes[place], math.prod(shape) * itemsize)
        return sizes

    def _has_room_for(self, identity: int, sizes: Sequence[int]) -> bool:
        """Tell whether a variable's extents have room for these sizes, by place, at most twice as much."""
        known = None if identity in self._once else self._placements.get(identity)
        return known is not None and all(
            nbytes <= extent.nbytes <= 2 * _reserved(nbytes)
            for nbytes, extent in zip(sizes, known.extents, strict=True)
        )

    def _allocate(self, nbytes: int, extents: Mapping[int, tuple[Extent, ...]]) -> dict[int, VariableMemory]:
        """Allocate a block, and return the placements of variables in it, still without array references."""
        segment = self._segments.allocate(nbytes)
        for identity in extents:
            self.release(identity)
        self._in_segment[segment] = set(extents)
        return {identity: VariableMemory(segment, extents[identity], ()) for identity in extents}

    def is_visible_to_master(self, identity: int) -> bool:
        """Return whether rank 0 sees the arrays of all ranks, since these are in the memory of one machine.

        The master decides this for all ranks; each by itself might decide differently.
        """
        return identity in self._placements and len(self._ranks.sizes) == 1

    def as_messages(self) -> list[messages.UseStorage]:
        """Return the messages that tell a new worker where variables are stored."""
        return [messages.UseStorage(identity, known.refs) for identity, known in self._placements.items()]

    def release_all(self) -> None:
        """Give up all storage: variables are stored anew when they next take part in a collective."""
        for identity in list(self._placements):
            self.release(identity)

    def release(self, identity: int) -> None:
        """Give up the storage of a variable; safe in finalizers, at any moment."""
        self._reshaped.discard(identity)
        self._once.discard(identity)
        known = self._placements.pop(identity, None)
        if known is None:
            return
        self._on_release(identity)
        there = self._in_segment[known.segment]
        there.discard(identity)
        if not there and self._in_segment.pop(known.segment, None) is not None:
            self._segments.release(known.segment)
