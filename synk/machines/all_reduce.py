"""Combine the arrays of all machines in place: each part by one machine, in machine order.

Machine p combines the p-th part of all arrays, and sends the result to all. So every machine has the same
bits, also where processors round differently, and terms come in the order of machines: MPI's own reductions
promise neither. Each machine sends 2 (H - 1) / H times the array, as in a ring.

    terms of chunk k to their machines -> combine -> results of chunk k to all machines

A part is sent in chunks; the terms of the next few are under way while one is combined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.comm.blocks import Blocks, Scratch
from synk.machines.links import Links, Watch, wait
from synk.values.rows import split

Array = NDArray[Any]
CHUNK_BYTES = 4 << 20  # of terms for one chunk, from all machines together
LEAST_BYTES = 1 << 16  # of a message, beyond which its own cost does not show
IN_FLIGHT = 3  # chunks whose terms are under way
TERMS, RESULTS = 0, 1  # to be added to a tag


class AllReduce:
    """The all-reduces of one machine, one after the other; room is kept for the next."""

    def __init__(self, links: Links):
        self._links = links
        self._room = np.empty(0, "u1")
        self._scratch: Scratch = {}

    def run(self, array: Array, op: str, number: int, watch: Watch) -> None:
        """Combine flat contiguous arrays; ``number`` is one that all machines have, and another each time."""
        if self._links.n_machines == 1:
            return
        tag = 2 * (number % (self._links.n_tags // 2))
        one = _OneReduction(self._links, array, op, tag, watch)
        nbytes = one.room_bytes
        if self._room.nbytes < nbytes:
            self._room = np.empty(nbytes, "u1")
        try:
            one.run(self._room[:nbytes].view(array.dtype), self._scratch)
        except BaseException:
            self._links.give_up(one.started)
            self._room = np.empty(0, "u1")  # the old one may still be written to
            raise


class _OneReduction:
    """One all-reduce, on one machine.

    Attributes
    ----------
    started : list
        All its transfers.
    room_bytes : int
        What it needs for the terms of the other machines.
    """

    def __init__(self, links: Links, array: Array, op: str, tag: int, watch: Watch):
        self._links, self._op, self._tag, self._watch = links, op, tag, watch
        self._me, n = links.machine, links.n_machines
        self._others = [(self._me + distance) % n for distance in range(1, n)]  # not all first to machine 0
        self._parts = [array[slice(*rows)] for rows in split(array.size, n)]
        longest, itemsize = self._parts[0].size, array.itemsize
        self._length = max(min(longest, max(CHUNK_BYTES // (n - 1), LEAST_BYTES) // itemsize), 1)
        self._n_chunks = -(-longest // self._length)
        self._in_flight = min(IN_FLIGHT, self._n_chunks)
        self.room_bytes = self._in_flight * (n - 1) * self._length * itemsize
        self.started: list[Any] = []

    def run(self, room: Array, scratch: Scratch) -> None:
        """Combine chunk by chunk, in ``room`` for the terms of those that are under way."""
        rooms = room.reshape(-1, len(self._others), self._length)
        terms: list[Any] = []
        results: list[Any] = []
        for chunk in range(self._n_chunks + self._in_flight):
            ready = chunk - self._in_flight
            if ready >= 0:
                self._finish(terms[ready])
                self._combine(ready, rooms[ready % len(rooms)], scratch)
                results.append(self._exchange_results(ready))
            if chunk < self._n_chunks:
                terms.append(self._exchange_terms(chunk, rooms[chunk % len(rooms)]))
        for transfers in results:
            self._finish(transfers)

    def _chunk(self, part: int, chunk: int) -> Array:
        return self._parts[part][chunk * self._length : (chunk + 1) * self._length]

    def _spaces(self, chunk: int, room: Array) -> list[tuple[int, Array]]:
        """Return where the terms of each other machine go, with its number."""
        size = self._chunk(self._me, chunk).size
        return [(other, space[:size]) for other, space in zip(self._others, room, strict=True)]

    def _exchange_terms(self, chunk: int, room: Array) -> list[Any]:
        """Start to send the terms of others' parts, and to receive those of this machine's."""
        receive, send = self._links.start_receive, self._links.start_send
        return self._note(
            [receive(space, other, self._tag + TERMS) for other, space in self._spaces(chunk, room)]
            + [send(self._chunk(other, chunk), other, self._tag + TERMS) for other in self._others]
        )

    def _combine(self, chunk: int, room: Array, scratch: Scratch) -> None:
        mine = self._chunk(self._me, chunk)
        terms = {self._me: mine, **dict(self._spaces(chunk, room))}
        Blocks([terms[machine] for machine in sorted(terms)], self._op, [mine], scratch).run()

    def _exchange_results(self, chunk: int) -> list[Any]:
        """Start to send this machine's results, and to receive others' over the terms that were sent."""
        mine = self._chunk(self._me, chunk)
        receive, send = self._links.start_receive, self._links.start_send
        return self._note(
            [receive(self._chunk(other, chunk), other, self._tag + RESULTS) for other in self._others]
            + [send(mine, other, self._tag + RESULTS) for other in self._others]
        )

    def _note(self, transfers: list[Any]) -> list[Any]:
        self.started += transfers
        return transfers

    def _finish(self, transfers: list[Any]) -> None:
        wait(self._links, lambda: self._links.done(transfers), self._watch)
