"""Where shared variables live that take part in collectives: in shared memory, seen by every rank.

A variable moves at its first collective and stays: programs update it in place, so collectives find
all ranks' values without copying them anywhere first. Each rank's home has its own shape, since what
is scattered need not divide evenly.

    Homes.ensure (master) -> Attach per block, MoveIn per variable -> RankVariables.move_in on every rank

Variables that move at the same time share segments, blocks of two MiB at most: a segment costs a message, a
descriptor and a page. A block is freed with the last variable in it, so a large variable has its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from numpy.typing import NDArray

from synk.arrays.variables import RankVariables
from synk.memory.segments import SegmentTable, aligned
from synk.values import messages
from synk.values.errors import SharedMemoryFull

BLOCK_BYTES = 1 << 20  # a block that has as much takes no further variable

Shapes = Sequence[tuple[int, ...]]  # by rank


class Room(NamedTuple):
    """Bytes of a block in which one rank's value of a variable has its place."""

    offset: int
    nbytes: int


class Home(NamedTuple):
    """Where one variable lives."""

    segment: int
    rooms: tuple[Room, ...]  # by rank
    refs: tuple[messages.ArrayRef, ...]  # by rank, the arrays in them


def packed(sizes: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, dict[int, tuple[Room, ...]]]]:
    """Divide variables among blocks.

    Parameters
    ----------
    sizes : mapping of int to sequence of int
        Bytes by variable, then by rank.

    Yields
    ------
    nbytes : int
        Of the block.
    rooms : dict of int to tuple of Room
        Of the variables in it, by rank.
    """
    end, block = 0, dict[int, tuple[Room, ...]]()
    for identity, of_ranks in sizes.items():
        aligned = [_room(nbytes) for nbytes in of_ranks]
        total = sum(aligned)
        if total >= BLOCK_BYTES:
            yield total, {identity: _rooms(0, aligned)}
            continue
        block[identity] = _rooms(end, aligned)
        end += total
        if end >= BLOCK_BYTES:
            yield end, block
            end, block = 0, {}
    if block:
        yield end, block


def _rooms(start: int, sizes: Sequence[int]) -> tuple[Room, ...]:
    stops = itertools.accumulate(sizes, initial=start)
    return tuple([Room(offset, nbytes) for offset, nbytes in zip(stops, sizes, strict=False)])


def _room(nbytes: int) -> int:
    return aligned(max(1, nbytes))  # so that no two homes are in one place


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
        self._homes: dict[int, Home] = {}
        self._tenants: dict[int, set[int]] = {}  # by segment, the variables that live there
        self._outgrown: set[int] = set()
        # Called with each variable whose home is given up.
        self.on_release: Callable[[int], None] = lambda identity: None
        own.on_drop = self.release

    def ensure(self, identities: Iterable[int], alike: bool = True) -> None:
        """Move variables to shared memory, unless they live there or there is no room.

        Parameters
        ----------
        identities : iterable of int
        alike : bool
            All ranks' values are to have the shape of rank 0's; else it is enough that this one fits.
        """
        wanted = {}
        for identity in identities if self._wanted else ():
            shape, known = self._own.value(identity).shape, self._homes.get(identity)
            whole = alike or identity in self._outgrown
            compared = () if known is None else known.refs if whole else known.refs[:1]
            if not compared or any(ref.shape != shape for ref in compared):
                wanted[identity] = [shape] * self._n_ranks
        self._move(wanted)

    def watched(self, identities: Iterable[int]) -> list[tuple[list[Any], Any]] | None:
        """Return the storage of variables with the arrays that `ensure` leaves there; None if it must look.

        While these are in it, on rank 0, there is nothing to ensure.
        """
        if not self._wanted:
            return []
        watched = []
        for identity in identities:
            homes = self._own.places(identity)
            if homes is None:  # there was no room
                return None
            watched.append((self._own[identity].container.storage, homes[0]))
        return watched

    def outgrown(self, identity: int) -> None:
        """Note that all ranks' values have one shape now, whatever their homes have."""
        self._outgrown.add(identity)

    def shapes(self, identity: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' homes; where there are none, those they would usually have."""
        known = self._homes.get(identity)
        if known is None:
            return [self._own.value(identity).shape] * self._n_ranks
        return [ref.shape for ref in known.refs]

    def place(self, wanted: Mapping[int, Shapes]) -> list[list[NDArray[Any]] | None]:
        """Give variables homes of these shapes.

        Returns
        -------
        list of (list of array or None)
            By variable its homes, by rank; None where there are to be none, or there is no room.
        """
        if self._wanted:
            self._outgrown.difference_update(wanted)
            self._move({n: shapes for n, shapes in wanted.items() if not self._has(n, shapes)})
        return [self._own.places(n) if self._has(n, shapes) else None for n, shapes in wanted.items()]

    def _has(self, identity: int, shapes: Shapes) -> bool:
        known = self._homes.get(identity)
        return known is not None and [ref.shape for ref in known.refs] == list(shapes)

    def settle(self, identity: int) -> None:
        """Let rank 0 take what is in its home as its value; the others do so by a step."""
        self._own.settle(identity)

    def _move(self, wanted: Mapping[int, Shapes]) -> None:
        """Give variables homes of other shapes, as far as there is room."""
        self._outgrown.difference_update(wanted)
        sizes = {n: self._sizes(n, shapes) for n, shapes in wanted.items()}
        settled = {n: self._homes[n] for n in wanted if self._suits(n, sizes[n])}
        for nbytes, rooms in packed({n: of_ranks for n, of_ranks in sizes.items() if n not in settled}):
            with suppress(SharedMemoryFull):  # collectives stage them then
                settled.update(self._allocate(nbytes, rooms))
        for n, home in settled.items():
            self._homes[n] = home._replace(refs=self._refs(n, home, wanted[n]))
        moves = tuple([messages.MoveIn(n, self._homes[n].refs) for n in settled])
        if moves:
            self._post(messages.Several(moves))
        for move in moves:
            self._own.move_in(move.identity, [self._segments.array(ref) for ref in move.homes])

    def _refs(self, identity: int, home: Home, shapes: Shapes) -> tuple[messages.ArrayRef, ...]:
        dtype, places = self._own.value(identity).dtype.str, zip(home.rooms, shapes, strict=True)
        return tuple([messages.ArrayRef(home.segment, dtype, shape, room.offset) for room, shape in places])

    def _sizes(self, identity: int, shapes: Shapes) -> list[int]:
        itemsize = self._own.value(identity).dtype.itemsize
        return [math.prod(shape) * itemsize for shape in shapes]

    def _suits(self, identity: int, sizes: Sequence[int]) -> bool:
        """Tell whether values of these sizes have room where a variable lives, and not much too much."""
        known = self._homes.get(identity)
        return known is not None and all(
            nbytes <= room.nbytes <= 2 * _room(nbytes)
            for nbytes, room in zip(sizes, known.rooms, strict=True)
        )

    def _allocate(self, nbytes: int, rooms: Mapping[int, tuple[Room, ...]]) -> dict[int, Home]:
        """Return homes in a new block."""
        segment = self._segments.allocate(nbytes)
        for identity in rooms:
            self.release(identity)
        self._tenants[segment] = set(rooms)
        return {identity: Home(segment, rooms[identity], ()) for identity in rooms}

    def has(self, identity: int) -> bool:
        """Return whether there are homes of a variable; only the master's word on it is the same for all."""
        return identity in self._homes

    def moves(self) -> list[messages.MoveIn]:
        """Return what tells a new worker where variables live."""
        return [messages.MoveIn(identity, home.refs) for identity, home in self._homes.items()]

    def release_all(self) -> None:
        """Give up all homes: variables move anew when they next take part in a collective."""
        for identity in list(self._homes):
            self.release(identity)

    def release(self, identity: int) -> None:
        """Give up the home of a variable; safe in finalizers, at any moment."""
        self._outgrown.discard(identity)
        home = self._homes.pop(identity, None)
        if home is None:
            return
        self.on_release(identity)
        tenants = self._tenants[home.segment]
        tenants.discard(identity)
        if not tenants and self._tenants.pop(home.segment, None) is not None:
            self._segments.release(home.segment)
