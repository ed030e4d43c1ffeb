"""Collectives through shared memory, for ranks on one machine.

Every rank describes its array in its header. Arrays that live in shared memory are combined, or
read, where they are: each rank reduces one chunk of all of them, into all of them.

    header -> barrier -> compare -> reduce my chunk -> barrier

Others are copied to slots of an arena first.

    header -> barrier -> compare, grow -> slot -> barrier -> reduce my chunk -> barrier -> copy out

A rank writes its next header, and its slot, only after a barrier that every rank reaches when it has read the
last ones, so nothing is overwritten while it is read.

Several collectives in a row (`at_once`) have one header and two barriers for all of them, if all arrays live
in shared memory: each rank works on its own chunk of every array, which no other rank touches before the last
barrier.
"""

from __future__ import annotations

import hashlib
from array import array as words_in
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.transport.comm.blocks import Blocks, Scratch
from synk.transport.comm.communicator import Communicator, Read, Shared, SharedArrays, copies
from synk.transport.comm.header import ARENA, SHARED, Header, check_equal, words_of
from synk.transport.commands.sync import Barrier
from synk.transport.memory.segments import aligned
from synk.transport.memory.shm import Segment
from synk.values.rows import split

Array = NDArray[Any]


class HostCommunicator(Communicator):
    """Collectives of NumPy arrays through an arena in shared memory.

    ``grow(nbytes)`` gives all ranks one new segment, the same; every rank calls it at the same point.
    """

    def __init__(self, barrier: Barrier, grow: Callable[[int], Segment]):
        super().__init__(barrier.place, barrier.n_places)
        self._barrier = barrier
        self._grow = grow
        self._arena: Segment | None = None
        self._arena_nbytes = self._front = 0  # bytes before the first slot: those of `at_first`
        self._scratch: Scratch = {}
        # Whether, inside of `at_once`, all headers were compared and no barrier is needed.
        self._is_compared = False
        # A view of the words is taken anew each time: one that is kept would keep them mapped after the run.
        self._control = control = barrier.control
        self._mine = control.header_at(self.rank)
        self._others = [control.header_at(other) for other in range(self.n_ranks) if other != self.rank]

    @contextmanager
    def at_once(
        self, kind: str, op: str, shared: Sequence[SharedArrays | None], shapes: bool = True
    ) -> Iterator[None]:
        if len(shared) < 2:  # nothing is saved
            yield
            return
        same = self._headers_agree(_digest([self._words(kind, op, one, shapes) for one in shared]))
        compared = same and all(one is not None for one in shared)
        if not compared:
            self._barrier.wait()  # before the next header
        self._is_compared = compared
        try:
            yield
        finally:
            self._is_compared = False
        if compared:
            self._barrier.wait()

    def _words(self, kind: str, op: str, shared: Shared, shapes: bool) -> memoryview:
        """Return the words of this rank's header for arrays in shared memory; none if they are not there."""
        if shared is None:
            return memoryview(b"")
        words: memoryview | None = shared.plans.get((kind, op))
        if words is None:
            mine = shared[self.rank]
            shape = mine.shape if shapes else ()
            words = shared.plans[kind, op] = words_of(kind, op, mine.dtype, shape, is_shared=True)
        return words

    def all_reduce(self, array: Array, op: str, shared: Shared = None) -> Array:
        if shared is not None:
            # Every training step comes here, so the plan is kept from the step before.
            words, blocks = shared.plans.get(op) or self._plan(op, shared)
            if self._is_compared or self._headers_agree(words):
                blocks.run()
                self._wait_for_readers()
                return array
        headers = self._headers_of("all_reduce", op, array, shared, is_written=shared is not None)
        result = self._reduce_staged(headers, array, op)
        if not array.flags.writeable:
            return result.copy()
        array[...] = result
        return array

    def reduce(
        self, array: Array, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        kind = "reduce in place" if in_place else "reduce"
        headers = self._to_stage(kind, op, array, shared)
        if shared is None or headers:
            # Copied arrays are reduced by all ranks, each of which does its chunk, as in `all_reduce`.
            result = self._reduce_staged(headers, array, op)
            return result.copy() if self.rank == root else None
        result = array
        if in_place:
            self._chunk(shared, op, into=root).run()
        elif self.rank == root:
            result = np.empty(array.shape, array.dtype)
            Blocks(_flat(shared), op, [result.reshape(-1)], self._scratch).run()
        self._wait_for_readers()
        return result if self.rank == root else None

    def broadcast(self, array: Array, root: int = 0, shared: Shared = None) -> Array:
        headers = self._to_stage("broadcast", "sum", array, shared, shapes=False)
        if shared is not None and not headers:
            if self.rank != root:
                array[...] = shared[root]
            self._wait_for_readers()
            return array
        slot = self._fill_slots(headers, array, only=root)[root]
        return slot.copy()

    def all_gather(self, array: Array, shared: Shared = None, read: Read = copies) -> Any:
        return self._gather("all_gather", array, shared, read, reading=True, only=None)

    def gather(
        self, array: Array, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        return self._gather("gather", array, shared, read, self.rank == root, only)

    def _gather(
        self, kind: str, array: Array, shared: Any, read: Read, reading: bool, only: int | None
    ) -> Any:
        headers = self._to_stage(kind, "sum", array, shared, shapes=False)
        arrays = self._fill_slots(headers, array, only) if headers or shared is None else shared
        result = read(arrays if only is None else [arrays[only]]) if reading else None
        if not headers:  # a slot is not filled again before the next header has been met
            self._wait_for_readers()
        return result

    def at_first(
        self, payload: bytes, room: int, work: Callable[[Sequence[bytes]], bytes], result_room: int
    ) -> bytes:
        """Call ``work`` on rank 0 with the payloads of all ranks; return its result on every rank.

        Payloads have up to ``room`` bytes, the result up to ``result_room``. It takes two barriers, which is
        the least for a few bytes, and compares no headers.
        """
        self._front = self.n_ranks * room + result_room
        while not self._put_if_it_fits(payload, room):
            self._barrier.wait()  # before a rank says again how long its arena is
        if self.rank == 0:
            self._put(self.n_ranks, room, work([self._bytes(rank, room) for rank in range(self.n_ranks)]))
        self._barrier.wait()
        return self._bytes(self.n_ranks, room)

    def _put_if_it_fits(self, payload: bytes, room: int) -> bool:
        """Put a payload into the arena for rank 0; return False if the arena was too small, and has grown."""
        words = self._control.words
        words[self._mine + ARENA] = self._arena_nbytes
        if self._arena_nbytes >= self._front:
            self._put(self.rank, room, payload)
        self._barrier.wait()
        arenas = {words[start + ARENA] for start in (self._mine, *self._others)}
        return not self._has_grown(arenas, self._front)

    def _put(self, number: int, room: int, payload: bytes) -> None:
        assert self._arena is not None, "payloads have room"
        place = self._arena.array("u1", (8 + len(payload),), number * room)
        place[:8].view(np.int64)[...] = len(payload)
        place[8:] = np.frombuffer(payload, "u1")

    def _bytes(self, number: int, room: int) -> bytes:
        assert self._arena is not None, "payloads were put there"
        length = int(self._arena.array(np.int64, (1,), number * room)[0])
        return self._arena.array("u1", (length,), number * room + 8).tobytes()

    # --- headers -----------------------------------------------------------------------------------

    def _headers_agree(self, words: memoryview) -> bool:
        """Write this rank's header; return whether those of all other ranks are the same."""
        control, count = self._control.words, len(words)
        control[self._mine + ARENA] = self._arena_nbytes
        start = self._mine + SHARED
        control[start : start + count] = words
        self._barrier.wait()
        for other in self._others:
            start = other + SHARED
            if control[start : start + count] != words:
                return False
        return True

    def _wait_for_readers(self) -> None:
        """Wait until all ranks have finished with the arrays in shared memory, except inside of `at_once`."""
        if not self._is_compared:
            self._barrier.wait()

    def _to_stage(
        self, kind: str, op: str, array: Array, shared: Shared, shapes: bool = True
    ) -> list[Header]:
        """Return the headers of all ranks if arrays must be copied; none if all are in shared memory."""
        if self._is_compared:
            return []
        headers = self._headers_of(kind, op, array, shared, shapes)
        return [] if all(header.is_shared for header in headers) else headers

    def _headers_of(
        self,
        kind: str,
        op: str,
        array: Array,
        shared: Shared,
        shapes: bool = True,
        is_written: bool = False,
    ) -> list[Header]:
        """Write this rank's header, unless it ``is_written``; return the headers of all ranks.

        Raises CollectiveMismatch if they differ, or with ``shapes`` also if their shapes do.
        """
        if not is_written:
            self._headers_agree(words_of(kind, op, array.dtype, array.shape, shared is not None))
        headers = [Header.read(self._control.header(rank)) for rank in range(self.n_ranks)]
        check_equal(headers, shapes)
        return headers

    # --- reductions --------------------------------------------------------------------------------

    def _plan(self, op: str, shared: SharedArrays) -> tuple[memoryview, Blocks]:
        mine = shared[self.rank]
        words = words_of("all_reduce", op, mine.dtype, mine.shape, is_shared=True)
        same = all((one.dtype, one.shape) == (mine.dtype, mine.shape) for one in shared)
        plan = shared.plans[op] = words, self._chunk(shared if same else [mine], op)
        return plan

    def _chunk(self, arrays: Sequence[Array], op: str, into: int | None = None) -> Blocks:
        """Return this rank's chunk of a reduction of arrays, into the array ``into`` or into all of them."""
        start, stop = split(arrays[0].size, self.n_ranks)[self.rank]
        parts = [array[start:stop] for array in _flat(arrays)]
        return Blocks(parts, op, parts if into is None else [parts[into]], self._scratch)

    def _reduce_staged(self, headers: list[Header], array: Array, op: str) -> Array:
        """Combine copies of all ranks' arrays in the arena; return a view of the result there."""
        slots = self._fill_slots(headers, array)
        self._chunk(slots, op, into=0).run()
        self._barrier.wait()
        return slots[0]

    # --- the arena ---------------------------------------------------------------------------------

    def _fill_slots(self, headers: list[Header], array: Array, only: int | None = None) -> list[Array]:
        """Copy this rank's array to its slot of the arena; return all slots once they are filled.

        With ``only``, the number of a rank, only that rank's slot is filled.
        """
        offsets = [self._front]
        for rank, header in enumerate(headers):
            nbytes = header.nbytes if only in (None, rank) else 0
            offsets.append(offsets[-1] + aligned(nbytes))
        self._has_grown({header.arena for header in headers}, offsets[-1])
        assert self._arena is not None
        slots = [
            self._arena.array(header.dtype, header.shape if only in (None, rank) else (0,), offset)
            for rank, (header, offset) in enumerate(zip(headers, offsets, strict=False))
        ]
        if only in (None, self.rank):
            slots[self.rank][...] = array
        self._barrier.wait()
        return slots

    def _has_grown(self, arenas: set[int], nbytes: int) -> bool:
        """Grow the arena unless all ranks have one of ``nbytes`` at least; return whether it has grown.

        ``arenas`` are the lengths of the ranks' arenas.
        """
        # Lengths differ if a growth was interrupted. All ranks see the same lengths, so all decide the same.
        if self._arena is not None and len(arenas) == 1 and min(arenas) >= nbytes:
            return False
        self._arena = self._grow(max(nbytes, max(arenas) + 1))
        self._arena_nbytes = self._arena.nbytes
        return True


def _digest(parts: Sequence[memoryview]) -> memoryview:
    """Return a header that stands for several: equal on all ranks if the parts are, and equal to no other."""
    digest = hashlib.blake2b(b";".join(parts), digest_size=16).digest()
    return memoryview(words_in("q", [-1, *words_in("q", digest)]))


def _flat(arrays: Sequence[Array]) -> list[Array]:
    return [array.reshape(-1) for array in arrays]
