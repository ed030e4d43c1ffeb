"""All-reduce between machines: machine p combines the p-th part of the arrays of all H machines.

Each machine sends the result for its part to all others. So all machines get the same bits, even if their
processors round differently, and terms are added in the order of machines; MPI's own reductions promise
neither. Each machine sends 2 (H - 1) / H times the size of the array, as in a ring.

    terms of chunk k to their machines -> combine -> results of chunk k to all machines

A part is sent in chunks: while one chunk is combined, the terms of the next few are being transferred.
Transfers arrive in a buffer, never in the array itself: after a reduction was given up, data may still
arrive when the caller already uses the array again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.transport.comm.blocks import Blocks, Scratch
from synk.transport.machines.links import ArrayLinks, Watch, wait
from synk.transport.memory.shm import Segment
from synk.values.rows import split

Array = NDArray[Any]
CHUNK_BYTES = 4 << 20  # of terms for one chunk, from all machines together
LEAST_BYTES = 1 << 16  # of a message: in larger ones the fixed cost of a message is negligible
IN_FLIGHT = 3  # chunks whose terms are being transferred at the same time
TERMS, RESULTS = 0, 1  # added to the tag of a reduction: the kind of data that a transfer has
LEFT = 8  # how many of the reductions that were given up are remembered, as their data may still arrive


class MachineAllReduce:
    """A `Reduction` in which this process itself exchanges the arrays, over `ArrayLinks`.

    The buffer for arriving data is kept for the next reduction.
    """

    def __init__(self, links: ArrayLinks):
        self._links = links
        self._room = np.empty(0, "u1")
        self._scratch: Scratch = {}
        self._left: deque[int] = deque(maxlen=LEFT)  # tags of reductions that were given up

    def run(self, array: Array, op: str, number: int, watch: Watch) -> None:
        if self._links.n_machines == 1:
            return
        for tag in self._left:
            self._links.clear(tag + TERMS)
            self._links.clear(tag + RESULTS)
        one = _OneReduction(self._links, array, op, self._tag(number), watch)
        nbytes = one.room_bytes
        if self._room.nbytes < nbytes:
            self._room = np.empty(nbytes, "u1")
        try:
            one.run(self._room[:nbytes].view(array.dtype), self._scratch)
        except BaseException:
            self._links.give_up(one.started)
            self._room = np.empty(0, "u1")  # the old one may still be written to
            raise

    def give_up(self, number: int) -> None:
        if self._tag(number) not in self._left:
            self._left.append(self._tag(number))

    def share(self, number: int, segment: Segment) -> None:
        """Do nothing: this process can combine any of its arrays in place."""

    def unshare(self, number: int) -> None:
        """Do nothing, as `share` does nothing."""

    def close(self) -> None:
        """Do nothing: MPI ends with the process."""

    def _tag(self, number: int) -> int:
        """Return the tag of a reduction's terms; its results have the next tag."""
        return 2 * (number % (self._links.n_tags // 2))


class _OneReduction:
    """One all-reduce, as one machine takes part in it.

    Attributes
    ----------
    started : list
        All transfers that this machine has started for it.
    room_bytes : int
        Size of the buffer for the terms and results that arrive from other machines.
    """

    def __init__(self, links: ArrayLinks, array: Array, op: str, tag: int, watch: Watch):
        self._links, self._op, self._tag, self._watch = links, op, tag, watch
        self._me, n = links.machine, links.n_machines
        self._others = [(self._me + distance) % n for distance in range(1, n)]  # not all first to machine 0
        self._parts = [array[slice(*rows)] for rows in split(array.size, n)]
        longest, itemsize = self._parts[0].size, array.itemsize
        self._length = max(min(longest, max(CHUNK_BYTES // (n - 1), LEAST_BYTES) // itemsize), 1)
        self._n_chunks = -(-longest // self._length)
        self._in_flight = min(IN_FLIGHT, self._n_chunks)
        self.room_bytes = 2 * self._in_flight * (n - 1) * self._length * itemsize
        self.started: list[Any] = []

    def run(self, room: Array, scratch: Scratch) -> None:
        """Combine the array chunk by chunk; ``room`` is the buffer for data from other machines.

        The loop is a pipeline of three stages. In each pass it takes the results of one chunk, combines the
        terms of a later one, and starts to exchange the terms of a still later one.
        """
        of_terms, of_results = room.reshape(2, self._in_flight, len(self._others), self._length)
        terms: list[Any] = []
        results: list[Any] = []
        for chunk in range(self._n_chunks + 2 * self._in_flight):
            n = chunk % self._in_flight
            ready, last = chunk - self._in_flight, chunk - 2 * self._in_flight
            if last >= 0:
                self._finish(results[last])
                self._take_results(last, of_results[n])
            if 0 <= ready < self._n_chunks:
                self._finish(terms[ready])
                self._combine(ready, of_terms[n], scratch)
                results.append(self._exchange_results(ready, of_results[n]))
            if chunk < self._n_chunks:
                terms.append(self._exchange_terms(chunk, of_terms[n]))

    def _chunk(self, part: int, chunk: int) -> Array:
        """Return the view of this machine's array that is one chunk of one machine's part."""
        return self._parts[part][chunk * self._length : (chunk + 1) * self._length]

    def _terms(self, chunk: int, room: Array) -> dict[int, Array]:
        """Return, by sender, the buffers into which the other machines' terms of a chunk are received."""
        size = self._chunk(self._me, chunk).size
        return {other: space[:size] for other, space in zip(self._others, room, strict=True)}

    def _results(self, chunk: int, room: Array) -> dict[int, Array]:
        """Return, by sender, the buffers into which other machines' results of a chunk are received."""
        spaces = zip(self._others, room, strict=True)
        return {other: space[: self._chunk(other, chunk).size] for other, space in spaces}

    def _exchange_terms(self, chunk: int, room: Array) -> list[Any]:
        """Start to send the terms of other machines' parts, and to receive those of this machine's part."""
        receive, send = self._links.start_receive, self._links.start_send
        return self._note(
            [receive(space, other, self._tag + TERMS) for other, space in self._terms(chunk, room).items()]
            + [send(self._chunk(other, chunk), other, self._tag + TERMS) for other in self._others]
        )

    def _combine(self, chunk: int, room: Array, scratch: Scratch) -> None:
        """Combine all machines' terms of a chunk of this machine's part, in machine order."""
        mine = self._chunk(self._me, chunk)
        terms = {self._me: mine, **self._terms(chunk, room)}
        Blocks([terms[machine] for machine in sorted(terms)], self._op, [mine], scratch).run()

    def _exchange_results(self, chunk: int, room: Array) -> list[Any]:
        """Start to send this machine's results of a chunk to all others, and to receive theirs."""
        mine = self._chunk(self._me, chunk)
        receive, send = self._links.start_receive, self._links.start_send
        return self._note(
            [
                receive(space, other, self._tag + RESULTS)
                for other, space in self._results(chunk, room).items()
            ]
            + [send(mine, other, self._tag + RESULTS) for other in self._others]
        )

    def _take_results(self, chunk: int, room: Array) -> None:
        """Copy the results of the other machines from the buffer into the array."""
        for other, result in self._results(chunk, room).items():
            self._chunk(other, chunk)[...] = result

    def _note(self, transfers: list[Any]) -> list[Any]:
        self.started += transfers
        return transfers

    def _finish(self, transfers: list[Any]) -> None:
        wait(self._links, transfers, self._watch)
