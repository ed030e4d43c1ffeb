"""Shared memory for the shared variables that take part in collectives, mapped by every rank.

A variable is stored there at its first collective and stays: programs update it in place, so collectives find
all ranks' values without copying them anywhere first. Each rank's array has its own shape, since what
is scattered need not divide evenly.

Of several machines each has a block of the same number and length, with the arrays of its own ranks: those at
the same place in their machines are at the same place in the blocks.

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

from numpy.typing import NDArray

from synk.run.arrays.ranks_by_machine import RanksByMachine
from synk.run.arrays.variables import RankVariables
from synk.transport.memory.segments import SegmentTable, aligned
from synk.values import messages
from synk.values.errors import SharedMemoryFull

BLOCK_BYTES = 1 << 20  # a block that has as much takes no further variable

Shapes = Sequence[tuple[int, ...]]  # by rank


class Extent(NamedTuple):
    """Bytes of a block that are set aside for the value of a variable at one place of a machine."""

    offset: int
    nbytes: int


class VariableMemory(NamedTuple):
    """The memory of one variable."""

    segment: int
    extents: tuple[Extent, ...]  # by place
    refs: tuple[messages.ArrayRef, ...]  # by rank, the arrays in them


def divide_among_blocks(
    sizes: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, dict[int, tuple[Extent, ...]]]]:
    """Divide variables, of so many bytes by place, among blocks.

    Yields the bytes of each block, and the extents of the variables in it, by place.
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


def _extents(start: int, sizes: Sequence[int]) -> tuple[Extent, ...]:
    stops = itertools.accumulate(sizes, initial=start)
    return tuple([Extent(offset, nbytes) for offset, nbytes in zip(stops, sizes, strict=False)])


def _reserved(nbytes: int) -> int:
    return aligned(max(1, nbytes))  # so that no two arrays are in one place


class SharedStorage:
    """The master's record of which shared variables are stored in shared memory, and where.

    ``post(message)`` reaches all workers. Variables on GPUs are not ``wanted`` there: NCCL moves them, or
    they are staged, and a copy here would cost memory and time. ``on_release`` is called with each variable
    whose storage is given up.
    """

    def __init__(
        self,
        segments: SegmentTable,
        post: Callable[..., None],
        own: RankVariables,
        ranks: RanksByMachine,
        wanted: bool,
        on_release: Callable[[int], None],
    ):
        self._segments = segments
        self._post = post
        self._own = own
        self._ranks = ranks
        self._is_wanted = wanted
        self._on_release = on_release
        self._placements: dict[int, VariableMemory] = {}  # by variable
        self._in_segment: dict[int, set[int]] = {}  # the variables stored there
        self._reshaped: set[int] = set()
        own.on_drop = self.release

    @property
    def _wanted(self) -> bool:
        return self._is_wanted and self._ranks.n_ranks > 1

    def ensure(self, identities: Iterable[int], alike: bool = True) -> None:
        """Store variables in shared memory, unless they are there or there is no room.

        If ``alike``, all ranks' values are to have the shape of rank 0's; else it is enough that this one
        fits.
        """
        wanted = {}
        for identity in identities if self._wanted else ():
            shape, known = self._own.value(identity).shape, self._placements.get(identity)
            whole = alike or identity in self._reshaped
            compared = () if known is None else known.refs if whole else known.refs[:1]
            if not compared or any(ref.shape != shape for ref in compared):
                wanted[identity] = [shape] * self._ranks.n_ranks
        self._store(wanted)

    def watched(self, identities: Iterable[int]) -> list[tuple[list[Any], Any]] | None:
        """Return PyTensor's storage of variables with the arrays that `ensure` leaves there.

        While these are in it, on rank 0, there is nothing to ensure. None if it must look every time.
        """
        if not self._wanted:
            return []
        watched = []
        for identity in identities:
            shared = self._own.storage(identity)
            if shared is None:  # there was no room
                return None
            watched.append((self._own[identity].container.storage, shared[0]))
        return watched

    def note_reshaped(self, identity: int) -> None:
        """Note that all ranks' values have one shape now, whatever their storage has."""
        self._reshaped.add(identity)

    def shapes(self, identity: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' arrays; where there are none, those they would usually have."""
        known = self._placements.get(identity)
        if known is None:
            return [self._own.value(identity).shape] * self._ranks.n_ranks
        return [ref.shape for ref in known.refs]

    def place(self, wanted: Mapping[int, Shapes]) -> list[list[NDArray[Any] | None] | None]:
        """Give variables arrays of these shapes; return by variable its arrays, by rank.

        None where there are to be none, or there is no room; of ranks on other machines the arrays are None.
        """
        if self._wanted:
            self._reshaped.difference_update(wanted)
            self._store({n: shapes for n, shapes in wanted.items() if not self._has(n, shapes)})
        return [self._arrays(n) if self._has(n, shapes) else None for n, shapes in wanted.items()]

    def _arrays(self, identity: int) -> list[NDArray[Any] | None]:
        here = list(self._own.storage(identity) or ())
        return [*here, *[None] * (self._ranks.n_ranks - len(here))]

    def _has(self, identity: int, shapes: Shapes) -> bool:
        known = self._placements.get(identity)
        return known is not None and [ref.shape for ref in known.refs] == list(shapes)

    def take_stored(self, identity: int) -> None:
        """Make what is stored for rank 0 its value; the others do so by a step."""
        self._own.take_stored(identity)

    def _store(self, wanted: Mapping[int, Shapes]) -> None:
        """Store variables in arrays of other shapes, as far as there is room."""
        self._reshaped.difference_update(wanted)
        sizes = {n: self._sizes_of(n, shapes) for n, shapes in wanted.items()}
        placed = {n: self._placements[n] for n in wanted if self._suits(n, sizes[n])}
        others = {n: of_ranks for n, of_ranks in sizes.items() if n not in placed}
        for nbytes, extents in divide_among_blocks(others):
            with suppress(SharedMemoryFull):  # collectives stage them then
                placed.update(self._allocate(nbytes, extents))
        for n, placement in placed.items():
            self._placements[n] = placement._replace(refs=self._refs(n, placement, wanted[n]))
        told = tuple([messages.UseStorage(n, self._placements[n].refs) for n in placed])
        if told:
            self._post(messages.Several(told))
        for message in told:
            here = message.arrays[: self._ranks.sizes[0]]
            self._own.use_storage(message.identity, [self._segments.array(ref) for ref in here], place=0)

    def _refs(
        self, identity: int, placement: VariableMemory, shapes: Shapes
    ) -> tuple[messages.ArrayRef, ...]:
        dtype, segment = self._own.value(identity).dtype.str, placement.segment
        offsets = [placement.extents[place].offset for place in self._ranks.places]
        both = zip(shapes, offsets, strict=True)
        return tuple([messages.ArrayRef(segment, dtype, shape, offset) for shape, offset in both])

    def _sizes_of(self, identity: int, shapes: Shapes) -> list[int]:
        """Return the bytes of a variable by place: those of the largest array that any machine has there."""
        itemsize = self._own.value(identity).dtype.itemsize
        sizes = [0] * max(self._ranks.sizes)
        for place, shape in zip(self._ranks.places, shapes, strict=True):
            sizes[place] = max(sizes[place], math.prod(shape) * itemsize)
        return sizes

    def _suits(self, identity: int, sizes: Sequence[int]) -> bool:
        """Tell whether values of these sizes have room where a variable is stored, and not much too much."""
        known = self._placements.get(identity)
        return known is not None and all(
            nbytes <= extent.nbytes <= 2 * _reserved(nbytes)
            for nbytes, extent in zip(sizes, known.extents, strict=True)
        )

    def _allocate(self, nbytes: int, extents: Mapping[int, tuple[Extent, ...]]) -> dict[int, VariableMemory]:
        """Return placements in a new block."""
        segment = self._segments.allocate(nbytes)
        for identity in extents:
            self.release(identity)
        self._in_segment[segment] = set(extents)
        return {identity: VariableMemory(segment, extents[identity], ()) for identity in extents}

    def is_seen(self, identity: int) -> bool:
        """Return whether a variable is stored where rank 0 sees the arrays of all ranks.

        Only the master's word on it is the same for all.
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
        known = self._placements.pop(identity, None)
        if known is None:
            return
        self._on_release(identity)
        there = self._in_segment[known.segment]
        there.discard(identity)
        if not there and self._in_segment.pop(known.segment, None) is not None:
            self._segments.release(known.segment)
