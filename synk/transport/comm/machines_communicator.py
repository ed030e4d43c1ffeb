"""Collectives of ranks on several machines: each machine's leader exchanges for its ranks.

Every rank describes its array in a `Contribution`, which includes the array if it is small.

    contribution -> leader (place 0) -> leaders exchange, compare, combine in rank order -> all ranks

So small arrays need one exchange, and their reductions have the same bits as on one machine. Large arrays
follow after all contributions were compared; in reductions each byte leaves a machine once:

    arrays -> reduced on each machine -> leaders reduce, in the order of machines -> all ranks

Arrays in shared memory are reduced there, and leaders send them from there without a copy.
"""

from __future__ import annotations

import struct
from array import array as words_in
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.transport.comm.blocks import Blocks, Scratch
from synk.transport.comm.communicator import Communicator, Read, Shared, copies
from synk.transport.comm.header import Header, check_equal, words_of
from synk.transport.comm.host_communicator import HostCommunicator
from synk.transport.comm.lone import LoneCommunicator
from synk.transport.commands.interfaces import Leaders
from synk.values.errors import CollectiveMismatch
from synk.values.machine import Machine

Array = NDArray[Any]
SMALL_BYTES = 1 << 12  # an array of at most so many bytes is sent in the contribution
PART_BYTES = SMALL_BYTES + (1 << 10)  # the most bytes of a contribution, with a small array or without
LENGTH = struct.Struct("<q")
HEADS = 1 << 12  # encoded headers that are kept, of a few hundred bytes each
SAME, DIFFER = b"=", b"!"  # a result begins so: contributions fit together, or do not, and the error follows


class Contribution(NamedTuple):
    """The contribution of one rank to a collective: its header, and its array if that is sent along."""

    header: Header
    array: Array | None  # None if it is large, or no other rank needs it


class MachinesCommunicator(Communicator):
    """Collectives of NumPy arrays of ranks on several machines.

    Parameters
    ----------
    local : HostCommunicator or LoneCommunicator
        The communicator of this machine's ranks; its ranks are their places.
    machine : Machine
        The machine of this rank.
    leaders : Leaders, optional
        The leaders of all machines, if this rank is the leader of its own, at place 0.
    watch : callable
        Called now and then while the leader waits; raises if a rank of this machine has failed.
    """

    def __init__(
        self,
        local: HostCommunicator | LoneCommunicator,
        machine: Machine,
        leaders: Leaders | None,
        watch: Callable[[], Any],
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

    def _parts(self, kind: str, op: str, array: Array, only: int | None = None) -> list[Contribution]:
        """Return the contributions of all ranks, in rank order, with arrays, or with that of rank ``only``.

        Raises CollectiveMismatch on every rank if they differ in more than shapes.
        """
        brings = only in (None, self.rank)
        mine = encoded(kind, op, array, brings and array.nbytes <= SMALL_BYTES)
        parts = list(decoded(self._exchanged(mine, False, lambda everywhere, parts: everywhere)))
        if any(part.array is None for part in (parts if only is None else [parts[only]])):
            parts = list(decoded(self._gathered(encoded(kind, op, array, brings))))
        return parts

    def _exchanged(
        self, mine: bytes, shapes: bool, finish: Callable[[bytes, list[Contribution]], bytes]
    ) -> bytes:
        """Exchange all ranks' contributions, of small arrays; return the result of ``finish`` on every rank.

        ``mine`` is this rank's contribution, encoded. Each leader calls ``finish`` with the bytes of all
        contributions and with the decoded ones. Raises CollectiveMismatch on every rank if they differ; with
        ``shapes`` also if their shapes do.
        """

        def work(here: Sequence[bytes]) -> bytes:
            assert self._leaders is not None, "work is done at place 0"
            everywhere = b"".join(self._leaders.all_gather(b"".join(here), self._watch))
            parts = list(decoded(everywhere))
            try:
                check_equal([part.header for part in parts], shapes)
            except CollectiveMismatch as error:
                return DIFFER + str(error).encode()
            return SAME + finish(everywhere, parts)

        result = self._local.at_first(mine, PART_BYTES, work, (1 + self.n_ranks) * PART_BYTES)
        if result.startswith(DIFFER):
            raise CollectiveMismatch(result[len(DIFFER) :].decode())
        return result[len(SAME) :]

    def _gathered(self, mine: bytes) -> bytes:
        """Return the encoded contributions of all ranks, with arrays of any length."""
        here = self._local.gather(np.frombuffer(mine, np.uint8), root=0, read=np.concatenate)
        everywhere = np.empty(0, np.uint8)
        if self._leaders is not None:
            joined = b"".join(self._leaders.all_gather(here, self._watch))
            everywhere = np.frombuffer(joined, np.uint8)
        return self._local.broadcast(everywhere).tobytes()

    # --- reductions ----------------------------------------------------------------------------------

    def _reduced(
        self, kind: str, array: Array, op: str, shared: Shared = None, in_place: bool = False
    ) -> Array:
        """Return the combination of the arrays of all ranks.

        With ``in_place``, ``array`` and ``shared`` may be overwritten, and a large result is in ``array``; a
        small one is a new array.
        """
        small = array.nbytes <= SMALL_BYTES
        mine = encoded(kind, op, array, small)
        result = self._exchanged(mine, True, lambda _, parts: self._combined(parts, op) if small else b"")
        if not small:
            return self._reduced_by_machines(array, op, shared, in_place)
        return np.ndarray(array.shape, array.dtype, result).copy()

    def _combined(self, parts: list[Contribution], op: str) -> bytes:
        """Return the combination, in rank order, of the arrays of all contributions, as bytes."""
        arrays = [part.array.reshape(-1) for part in parts if part.array is not None]
        result = np.empty_like(arrays[0])
        Blocks(arrays, op, [result], self._scratch).run()
        return result.tobytes()

    def _reduced_by_machines(self, array: Array, op: str, shared: Shared, in_place: bool) -> Array:
        """Combine large arrays of the same kind and shape, on each machine and then between machines."""
        if array.dtype == np.float16:  # computed in float32, so that sums are rounded once only
            wide = array.astype(np.float32)
            return self._reduced_by_machines(wide, op, None, in_place=False).astype(np.float16)
        total = self._local.reduce(np.ascontiguousarray(array), op, shared=shared, in_place=in_place)
        if self._leaders is not None:
            if op == "avg":  # machines' averages are weighted before they are added, so that no sum overflows
                total *= np.asarray(self._machine.n_places / self.n_ranks, total.dtype)
                op = "sum"
            self._leaders.all_reduce(total.reshape(-1), op, self._watch)
        if in_place:
            return self._local.broadcast(array, shared=shared)
        return self._local.broadcast(array[:0].reshape(-1) if total is None else total).reshape(array.shape)


def encoded(kind: str, op: str, array: Array, brings: bool) -> bytes:
    """Return a rank's contribution as bytes: a `Header`, and then the array if the rank ``brings`` it."""
    data = array.tobytes() if brings else b""
    head = _head(kind, op, array.dtype, array.shape, len(data), brings)
    return b"".join([head, data, bytes(-len(data) % 8)])


# The same headers are sent again and again, so they are encoded, and decoded, once only.


@lru_cache(HEADS)
def _head(
    kind: str, op: str, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int, brings: bool
) -> bytes:
    words = words_in("q", [nbytes, *words_of(kind, op, dtype, shape, is_shared=brings)])
    return LENGTH.pack(len(words)) + words.tobytes()


@lru_cache(HEADS)
def _header(words: bytes) -> Header:
    return Header.read(memoryview(words).cast("q"))


def decoded(parts: bytes) -> Iterator[Contribution]:
    """Yield the contributions from their bytes, one after the other; their arrays are views of the bytes."""
    start = 0
    while start < len(parts):
        (n_words,) = LENGTH.unpack_from(parts, start)
        data = start + LENGTH.size + 8 * n_words
        header = _header(parts[start + LENGTH.size : data])
        array = np.ndarray(header.shape, header.dtype, parts, data) if header.is_shared else None
        yield Contribution(header, array)
        start = data + header.arena + -header.arena % 8
