"""Memory that rows pass through on their way to a GPU, and the events that say when it may be used again.

    array, rows -> load: page-locked memory -> copying stream -> memory of the GPU
                -> hand_out: an array there, for which the computing stream waits -> retire

Two orders hold, each by an event: nobody writes to page-locked memory that is still being copied from (the
host waits), and nobody copies over rows that are still being read (the copying stream waits). Has run on a
stand-in for CuPy only, and on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.values.rows import SelectedRows, split

PIECE_BYTES = 4 << 20  # gathered together; the GPU fetches one while the next is gathered

# gather(array, parts of the rows, where each goes): yields when each part is there, in order
Gather = Callable[[Any, list[SelectedRows], list[NDArray[Any]]], Iterable[Any]]


class Streams(NamedTuple):
    """The stream on which a GPU computes, and the one that copies rows to it meanwhile."""

    computing: Any
    copying: Any
    recording: AbstractContextManager[Any]  # held while launches of `computing` are recorded


class InputBuffer:
    """Room for the rows of one call, on both sides.

    Whoever calls a method has the GPU bound to its thread.
    """

    def __init__(self, xp: Any, streams: Streams):
        self._xp = xp
        self._streams = streams
        # Who waits sleeps: another thread may need the core.
        self._copied = xp.cuda.Event(block=True, disable_timing=True)
        self._read = xp.cuda.Event(disable_timing=True)
        self._locked = np.empty(0, np.uint8)
        self._there: Any = None
        self._array: Any = None

    def load(self, array: NDArray[Any], rows: SelectedRows, gather: Gather) -> None:
        """Copy rows, not none, to the GPU, once the rows that were here before have been read.

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
        """Gather piece by piece, and have each copied as soon as it is there."""
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
            self._locked = np.empty(0, np.uint8)  # given back first: there may not be room for both
            self._locked = page_locked(self._xp, nbytes)
        if self._there is None or self._there.nbytes < nbytes:
            self._there = None
            self._there = self._xp.empty(nbytes, np.uint8)
            # The pool's memory may be that of an array which the computing stream still reads. An event of a
            # recording is none to wait for, and this may be another thread than the one that records.
            with self._streams.recording:
                self._streams.computing.record(self._read)

    def hand_out(self) -> Any:
        """Return the rows on the GPU: what is launched from now on waits until they are there."""
        self._streams.computing.wait_event(self._copied)
        return self._array

    def retire(self) -> None:
        """Note that all readers of the rows have been launched."""
        self._streams.computing.record(self._read)

    def wait(self) -> None:
        """Wait for the copy out of page-locked memory, if one is under way."""
        self._copied.synchronize()


def pieces(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the rows ``start, stop`` of each piece, of `PIECE_BYTES` or somewhat less."""
    yield from split(n_rows, min(n_rows, -(-n_rows * row_bytes // PIECE_BYTES)))


def page_locked(xp: Any, nbytes: int) -> NDArray[np.uint8]:
    """Return page-locked memory, which is freed with the last array over it."""
    # Not from CuPy's pool, which would keep it page-locked to the end of the process.
    pointer = xp.cuda.PinnedMemoryPointer(xp.cuda.PinnedMemory(nbytes), 0)
    return np.frombuffer(pointer, np.uint8, nbytes)
