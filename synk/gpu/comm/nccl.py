"""Collectives of arrays on GPUs, through NCCL.

    words through shared memory -> compare -> link -> pack -> NCCL on the current stream -> wait -> unpack

Before any data moves, the ranks compare on the host which collective each of them calls, and the shapes and
dtypes of their arrays. NCCL adds in an order of its own: the bits are the same on every rank, and in every
run on the same machine, but with three ranks or more they are not those of adding in rank order. *Unrun* on
GPUs.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from synk.gpu.comm.carrier import Carrier, carrier_of, contiguous
from synk.gpu.comm.nccl_library import Library
from synk.gpu.comm.nccl_link import Launch, Link, Peers
from synk.gpu.comm.staged import is_writable
from synk.transport.comm.communicator import Communicator, Read, Shared, copies
from synk.transport.comm.header import Meeting
from synk.transport.commands.sync import Barrier

Shape = tuple[int, ...]


class NcclCommunicator(Communicator):
    """Collectives of CuPy arrays through NCCL; each rank has a GPU.

    Results are complete when a method returns. The argument ``shared``, the place of other ranks' arrays in
    shared memory, is not used: a rank cannot read another rank's GPU memory. ``library`` is made in this
    process, with the rank's device current; ``host`` is the communicator of the same ranks for NumPy arrays.
    """

    def __init__(self, barrier: Barrier, library: Library, host: Communicator):
        super().__init__(barrier.rank, barrier.n_ranks)
        self._host = host
        self._library = library
        self._xp = library.xp
        self._barrier = barrier
        self._meeting = Meeting(barrier)
        self._link = Link(barrier, library)

    @property
    def on_host(self) -> Communicator:
        return self._host

    def all_reduce(self, array: Any, op: str, shared: Shared = None) -> Any:
        carrier = carrier_of(op, array.dtype, self.n_ranks)
        shapes = self._meet("all_reduce", op, array)
        if carrier is None:
            return self._put(self._product(self._all_gathered(array, shapes)), array)
        sent = carrier.pack(self._xp, array)
        where, code, kind = self._library.pointer(sent), *self._codes(carrier)
        self._run(
            "all_reduce",
            sent.size,
            lambda comm, stream: comm.allReduce(where, where, sent.size, code, kind, stream),
        )
        return self._put(carrier.unpack(self._xp, sent, array.shape), array)

    def reduce(
        self, array: Any, op: str, root: int = 0, shared: Shared = None, in_place: bool = False
    ) -> Any:
        carrier = carrier_of(op, array.dtype, self.n_ranks)
        shapes = self._meet("reduce in place" if in_place else "reduce", op, array)
        if carrier is None:
            result = self._product(self._all_gathered(array, shapes))
        else:
            result = self._reduced(array, carrier, root, in_place)
        if self.rank != root:
            return None
        return self._put(result, array) if in_place else result

    def broadcast(self, array: Any, root: int = 0, shared: Shared = None) -> Any:
        shape = self._meet("broadcast", "sum", array, shapes=False)[root]
        if self.rank == root:
            moved = contiguous(array)
        elif shared is not None and array.shape == shape and array.flags.c_contiguous:
            moved = array
        else:
            moved = self._xp.empty(shape, array.dtype)
        self._run("broadcast", moved.nbytes, self._broadcasting([(root, moved)]))
        if self.rank == root or moved is array:
            return array
        return self._put(moved, array) if shared is not None else moved

    def all_gather(self, array: Any, shared: Shared = None, read: Read = copies) -> Any:
        shapes = self._meet("all_gather", "sum", array, shapes=False)
        return read(self._all_gathered(array, shapes))

    def gather(
        self, array: Any, root: int = 0, shared: Shared = None, read: Read = copies, only: int | None = None
    ) -> Any:
        shapes = self._meet("gather", "sum", array, shapes=False)
        wanted = range(self.n_ranks) if only is None else [only]
        mine, byte = contiguous(array), self._library.code("uint8")
        parts = {self.rank: mine}
        if self.rank == root:
            others = [rank for rank in wanted if rank != root]
            parts |= {rank: self._xp.empty(shapes[rank], array.dtype) for rank in others}

        def launch(comm: Any, stream: int) -> None:
            with self._library.group():
                for rank, part in parts.items() if self.rank == root else ():
                    if rank != root and part.nbytes:
                        comm.recv(self._library.pointer(part), part.nbytes, byte, rank, stream)
                if self.rank != root and self.rank in wanted and mine.nbytes:
                    comm.send(self._library.pointer(mine), mine.nbytes, byte, root, stream)

        if self.rank == root:
            peers = frozenset(("recv", rank) for rank in others if math.prod(shapes[rank]))
        else:
            peers = frozenset([("send", root)] if self.rank in wanted and mine.nbytes else [])
        self._run("gather", max(math.prod(shapes[rank]) for rank in wanted), launch, peers)
        return read([parts[rank] for rank in wanted]) if self.rank == root else None

    def close(self) -> None:
        self._link.abort()

    def _meet(self, kind: str, op: str, array: Any, shapes: bool = True) -> list[Shape]:
        """Check that all ranks call this collective, link them by NCCL, and return their shapes."""
        met = self._meeting.agree(kind, op, array, self._link.number, shapes)
        self._link.ensure(met.links)
        return met.shapes

    def _run(self, what: str, size: int, launch: Launch, peers: Peers = frozenset()) -> None:
        """Launch a collective, unless no rank has data to move; return once all ranks are done with it."""
        if size:
            self._link.run(launch, what, peers)
        else:
            self._barrier.wait()  # from here on, the words in shared memory may be written again

    def _codes(self, carrier: Carrier) -> tuple[int, int]:
        return self._library.code(carrier.dtype), self._library.code(carrier.op)

    def _reduced(self, array: Any, carrier: Carrier, root: int, in_place: bool) -> Any:
        """Return the combination of all ranks' arrays on the root, and None elsewhere."""
        sent = carrier.pack(self._xp, array)
        code, kind = self._codes(carrier)
        source = target = self._library.pointer(sent)
        result = sent
        if self.rank != root:
            target = 0  # NCCL does not read it here
        elif not in_place and source == self._library.pointer(array):
            result = self._xp.empty(sent.shape, sent.dtype)
            target = self._library.pointer(result)
        self._run(
            "reduce",
            sent.size,
            lambda comm, stream: comm.reduce(source, target, sent.size, code, kind, root, stream),
        )
        return carrier.unpack(self._xp, result, array.shape) if self.rank == root else None

    def _all_gathered(self, array: Any, shapes: list[Shape]) -> list[Any]:
        """Return the arrays of all ranks, in rank order."""
        mine = contiguous(array)
        if len(set(shapes)) > 1:
            parts = [mine if r == self.rank else self._xp.empty(s, array.dtype) for r, s in enumerate(shapes)]
            self._run("all_gather", sum(map(math.prod, shapes)), self._broadcasting(list(enumerate(parts))))
            return parts
        joined = self._xp.empty((self.n_ranks, *array.shape), array.dtype)
        source, target = self._library.pointer(mine), self._library.pointer(joined)
        byte = self._library.code("uint8")
        self._run(
            "all_gather",
            mine.nbytes,
            lambda comm, stream: comm.allGather(source, target, mine.nbytes, byte, stream),
        )
        return [joined[rank] for rank in range(self.n_ranks)]

    def _broadcasting(self, parts: list[tuple[int, Any]]) -> Launch:
        """Return a function that launches broadcasts: each array of ``parts`` from its root to all ranks."""
        byte = self._library.code("uint8")

        def launch(comm: Any, stream: int) -> None:
            with self._library.group():
                for root, part in parts:
                    if part.nbytes:
                        where = self._library.pointer(part)
                        comm.broadcast(where, where, part.nbytes, byte, root, stream)

        return launch

    def _product(self, arrays: list[Any]) -> Any:
        return reduce(self._xp.multiply, arrays)

    def _put(self, result: Any, array: Any) -> Any:
        """Copy the result into ``array`` and return that; if it cannot be written to, return the result."""
        if not result.size or self._library.pointer(result) == self._library.pointer(array):
            return array
        if not is_writable(array):
            return result
        array[...] = result
        return array
