"""Collectives of ranks on several machines: each machine's leader exchanges for its ranks.

Every rank says what it brings in a `Part`, its array behind it.

    array -> part -> gathered at place 0 -> leaders exchange -> handed out on each machine -> all parts

So all ranks compare what all bring, and combine it in rank order: the same bits as on one machine. Reductions
of large arrays go another way, by which each byte leaves a machine once:

    parts without arrays, compared -> reduced on each machine -> leaders reduce, in order -> handed out

Where they live in shared memory they are reduced there, and leaders exchange straight from it.
"""

from __future__ import annotations

from array import array as words_in
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.comm.base import Communicator, Read, Shared, copies
from synk.comm.blocks import Blocks, Scratch
from synk.comm.header import Header, check_equal, words_of
from synk.transport.base import Leaders
from synk.values.machine import Machine

Array = NDArray[Any]
SMALL_BYTES = 1 << 12  # of an array: the leaders exchange such ones as they are, in one message


class Part(NamedTuple):
    """The contribution of one rank to a collective."""

    header: Header
    array: Array | None  # None where nobody asks for it


class MachinesCommunicator(Communicator):
    """Collectives of NumPy arrays of ranks on several machines.

    Parameters
    ----------
    local : Communicator
        Of the ranks of this machine, whose ranks are places.
    machine : Machine
        This one.
    leaders : Leaders, optional
        At place 0.
    watch : callable
        Called now and then while the leader waits; raises if a rank of this machine has failed.
    """

    def __init__(
        self, local: Communicator, machine: Machine, leaders: Leaders | None, watch: Callable[[], Any]
    ):
        super().__init__(machine.first + local.rank, machine.n_ranks)
        self._local, self._machine, self._leaders, self._watch = local, machine, leaders, watch
        self._scratch: Scratch = {}

    def all_reduce(self, array: Array, op: str, shared: Shared = None) -> Array:
        result = self._reduced("all_reduce", array, op, shared, in_place=shared is not None)
        if not array.flags.writeable or result is array:
            return result
        array[...] = result
        return array

    def reduce(
        self, array: Array, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        result = self._reduced("reduce in place" if in_place else "reduce", array, op, shared)
        if self.rank != root:
            return None
        if not in_place:
            return result
        array[...] = result
        return array

    def broadcast(self, array: Array, root: int = 0, shared: Shared = None) -> Array:
        sent = self._parts("broadcast", "sum", array, only=root)[root].array
        assert sent is not None, "the root sends its array"
        if shared is None or sent.shape != array.shape:
            return sent.copy()
        array[...] = sent
        return array

    def all_gather(self, array: Array, shared: Shared = None, read: Read = copies) -> Any:
        return read([part.array for part in self._parts("all_gather", "sum", array)])

    def gather(
        self, array: Array, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        parts = self._parts("gather", "sum", array, only=only)
        if self.rank != root:
            return None
        return read([part.array for part in parts if part.array is not None])

    def close(self) -> None:
        if self._leaders is not None:
            self._leaders.close()

    # --- parts ---------------------------------------------------------------------------------------

    def _parts(
        self, kind: str, op: str, array: Array, shapes: bool = False, only: int | None = None
    ) -> list[Part]:
        """Return the parts of all ranks, in rank order, with their arrays, or that of ``only`` one rank.

        Raises CollectiveMismatch on every rank if that differs, up to the shapes unless ``shapes``.
        """
        brings = only in (None, self.rank)
        return self._exchanged(encoded(kind, op, array, brings), shapes)

    def _exchanged(self, mine: Array, shapes: bool) -> list[Part]:
        here = self._local.gather(mine, root=0, read=np.concatenate)
        everywhere = mine[:0]
        if self._leaders is not None:
            everywhere = np.concatenate(
                [np.frombuffer(one, np.uint8) for one in self._leaders.all_gather(here, self._watch)]
            )
        parts = list(decoded(self._local.broadcast(everywhere)))
        check_equal([part.header for part in parts], shapes)
        return parts

    # --- reductions ----------------------------------------------------------------------------------

    def _reduced(
        self, kind: str, array: Array, op: str, shared: Shared = None, in_place: bool = False
    ) -> Array:
        """Return the combination of the arrays of all ranks: ``array`` itself, where it may be ``in_place``.

        Arrays that are ``shared`` may be overwritten then, and a small result is not in them.
        """
        small = array.nbytes <= SMALL_BYTES
        parts = self._exchanged(encoded(kind, op, array, small), shapes=True)
        if not small:
            return self._reduced_by_machines(array, op, shared, in_place)
        result, arrays = np.empty(array.shape, array.dtype), [part.array for part in parts]
        Blocks(
            [one.reshape(-1) for one in arrays if one is not None], op, [result.reshape(-1)], self._scratch
        ).run()
        return result

    def _reduced_by_machines(self, array: Array, op: str, shared: Shared, in_place: bool) -> Array:
        """Combine large arrays machine by machine; all ranks bring the same."""
        total = self._local.reduce(np.ascontiguousarray(array), op, shared=shared, in_place=in_place)
        if self._leaders is not None:
            if op == "avg":  # of averages; their weights come first, so that no sum overflows
                total *= np.asarray(self._machine.n_places / self.n_ranks, total.dtype)
                op = "sum"
            self._leaders.all_reduce(total.reshape(-1), op, self._watch)
        if in_place:
            return self._local.broadcast(array, shared=shared)
        return self._local.broadcast(array[:0].reshape(-1) if total is None else total).reshape(array.shape)


def encoded(kind: str, op: str, array: Array, brings: bool) -> NDArray[np.uint8]:
    """Return the part of a rank as bytes: a `Header`, and the array behind it if it ``brings`` that."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if brings else np.empty(0, np.uint8)
    words = words_in("q", [data.size, *words_of(kind, op, array.dtype, array.shape, is_shared=brings)])
    length = np.array([len(words)], np.int64)
    padding = np.zeros(-data.size % 8, np.uint8)
    return np.concatenate([length.view(np.uint8), np.frombuffer(words, np.uint8), data, padding])


def decoded(parts: NDArray[np.uint8]) -> Iterator[Part]:
    """Yield the parts that were `encoded` one after the other; their arrays are views."""
    start = 0
    while start < parts.size:
        (n_words,) = parts[start : start + 8].view(np.int64)
        data = start + 8 + 8 * int(n_words)
        header = Header.read(parts[start + 8 : data].view(np.int64).data)
        stop = data + header.arena
        array = parts[data:stop].view(header.dtype).reshape(header.shape) if header.is_shared else None
        yield Part(header, array)
        start = stop + -header.arena % 8
