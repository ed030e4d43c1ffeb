"""Buffers through which rows are copied to a GPU, and the events that say when they are free again.

    array, rows -> load: page-locked memory -> copying stream -> memory of the GPU
                -> hand_out: an array there, for which the computing stream waits -> retire

Two events keep the order: the host waits before it writes to page-locked memory that is still being copied
from, and the copying stream waits before it overwrites rows on the GPU that are still being read. This has
run on the tests' replacement of CuPy only, and on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.values.rows import SelectedRows, split

PIECE_BYTES = 4 << 20  # of a piece: the GPU copies one while the next is gathered

# gather(array, parts of the rows, target of each part): yields once per part, in order, when it is copied
Gather = Callable[[Any, list[SelectedRows], list[NDArray[Any]]], Iterable[Any]]


class Streams(NamedTuple):
    """The stream on which a GPU computes, and the one that copies rows to it meanwhile."""

    computing: Any
    copying: Any
    recording: AbstractContextManager[Any]  # held while launches of `computing` are recorded


class InputBuffer:
    """A buffer for the rows of one call: page-locked memory on the host, and memory on the GPU.

    The calling thread must be bound to the GPU.
    """

    def __init__(self, xp: Any, streams: Streams):
        self._xp = xp
        self._streams = streams
        # A waiting thread sleeps instead of spinning: another thread may need the core.
        self._copied = xp.cuda.Event(block=True, disable_timing=True)
        self._read = xp.cuda.Event(disable_timing=True)
        self._locked = np.empty(0, np.uint8)
        self._there: Any = None
        self._array: Any = None

    def load(self, array: NDArray[Any], rows: SelectedRows, gather: Gather) -> None:
        """Copy one or more rows to the GPU, once the previous rows in this buffer have been read.

        The array's rows are contiguous.
        """
        shape = (len(rows), *array.shape[1:])
        nbytes = prod(shape) * array.dtype.itemsize
        self.wait()
        self._array = None
        self._reserve(nbytes)
        there = self._there[:nbytes].view(array.dtype).reshape(shape)
        self._streams.copying.wait_event(self._read)
        try:
            self._gathered(array, rows, there, gather)
        finally:
            self._streams.copying.record(self._copied)
        self._array = there

    def _gathered(self, array: NDArray[Any], rows: SelectedRows, there: Any, gather: Gather) -> None:
        """Gather rows into page-locked memory piece by piece, and start to copy each piece at once."""
        locked = np.ndarray(there.shape, there.dtype, buffer=self._locked)
        spans = list(pieces(len(rows), array.dtype.itemsize * prod(array.shape[1:])))
        targets = [locked[start:stop] for start, stop in spans]
        ready = gather(array, [rows.part(*span) for span in spans], targets)
        offset = 0
        for target, _ in zip(targets, ready, strict=True):
            self._copy(there, offset, target)
            offset += target.nbytes

    def _copy(self, there: Any, offset: int, here: NDArray[Any]) -> None:
        runtime, address = self._xp.cuda.runtime, here.__array_interface__["data"][0]
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(there.data.ptr + offset, address, here.nbytes, kind, self._streams.copying.ptr)

    def _reserve(self, nbytes: int) -> None:
        if self._locked.nbytes < nbytes:
            self._locked = np.empty(0, np.uint8)  # freed first: there may not be room for both
            self._locked = page_locked(self._xp, nbytes)
        if self._there is None or self._there.nbytes < nbytes:
            self._there = None
            self._there = self._xp.empty(nbytes, np.uint8)
            # The pool may return memory of an array that the computing stream still reads, so the copy must
            # wait for an event there. While another thread records launches, no such event can be made.
            with self._streams.recording:
                self._streams.computing.record(self._read)

    def hand_out(self) -> Any:
        """Return the rows as an array on the GPU; kernels launched from now on wait for the copy."""
        self._streams.computing.wait_event(self._copied)
        return self._array

    def retire(self) -> None:
        """Declare that all kernels which read the rows have been launched."""
        self._streams.computing.record(self._read)

    def wait(self) -> None:
        """Wait until no copy from page-locked memory is in progress."""
        self._copied.synchronize()


def pieces(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of each piece of the rows, at most `PIECE_BYTES` long."""
    yield from split(n_rows, min(n_rows, -(-n_rows * row_bytes // PIECE_BYTES)))


def page_locked(xp: Any, nbytes: int) -> NDArray[np.uint8]:
    """Return an array over new page-locked memory, which is freed with the last array that uses it."""
    # Not from CuPy's pool, which would keep it page-locked to the end of the process.
    pointer = xp.cuda.PinnedMemoryPointer(xp.cuda.PinnedMemory(nbytes), 0)
    return np.frombuffer(pointer, np.uint8, nbytes)
