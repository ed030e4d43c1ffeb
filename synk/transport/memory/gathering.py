"""Keep memory for the rows of a batch from call to call, and gather the next call's rows ahead, in a thread.

    Rows.of(array, memory) -> RowMemory -> an array that nobody else holds
    Gatherer.start(following rows) ... the next call -> Gatherer.take -> the rows, there already

Most of the time that it takes to gather large rows goes into pages the system has not handed out yet, so
memory that has pages is worth keeping.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.values.rows import SelectedRows

SMALL_BYTES = 1 << 17  # below, the C library has memory with pages at hand
AHEAD_BYTES = 1 << 20  # below, waking the thread takes longer than to gather
MOST_BLOCKS = 2  # of one input: rows of this call, rows of the next
ALONE = 2  # references: the list's, and the argument of getrefcount


class RowMemory:
    """Memory for the rows of one input.

    An array that was handed out counts as free once nothing refers to it nor to a view of it, so it may
    outlive the call: then the next one gets other memory.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any] | None:
        """Return an array to gather rows into, or None for a few rows, for which new memory costs nothing."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < SMALL_BYTES:
            return None
        return np.ndarray(shape, dtype, buffer=self._blocks[self._free(nbytes)])

    def _free(self, nbytes: int) -> int:
        """Return the position of a block of about ``nbytes`` that nobody uses; make one if there is none."""
        free = [at for at in range(len(self._blocks)) if sys.getrefcount(self._blocks[at]) == ALONE]
        for at in free:
            # A block that is much too large is not kept: it was made for a single large batch.
            if nbytes <= self._blocks[at].nbytes <= 2 * nbytes:
                return at
        # What is dropped here is freed now, or by those who still hold it.
        if free:
            del self._blocks[free[0]]
        elif len(self._blocks) == MOST_BLOCKS:
            del self._blocks[0]
        self._blocks.append(np.empty(nbytes, np.uint8))
        return len(self._blocks) - 1


class RowsToGather(NamedTuple):
    """An array, the rows of it that the next call reads, and the memory into which they are gathered."""

    array: Any
    rows: SelectedRows
    memory: RowMemory


class PendingRows(NamedTuple):
    """Rows that are being gathered for a later call."""

    token: int
    arrays: dict[int, Future[Any]]  # by position of the input


class Gatherer:
    """The row memories of one rank, and the thread that gathers rows while programs run."""

    def __init__(self) -> None:
        self._of_inputs: dict[tuple[int, int], RowMemory] = {}
        self.pending: dict[int, PendingRows] = {}
        self._thread: ThreadPoolExecutor | None = None

    def memory_of(self, function: int, position: int) -> RowMemory:
        """Return the memory for one input of a function."""
        memory = self._of_inputs.get((function, position))
        if memory is None:
            memory = self._of_inputs[function, position] = RowMemory()
        return memory

    def start(self, function: int, token: int, sources: Mapping[int, RowsToGather]) -> None:
        """Begin to gather rows for the next call of a function; ``sources`` are by position of the input.

        The next call gives the same ``token`` to `take`.
        """
        self.pending.pop(function, None)
        large = {position: source for position, source in sources.items() if _nbytes(source) >= AHEAD_BYTES}
        if not large:
            return
        try:
            arrays = {position: self._submit(source) for position, source in large.items()}
        except RuntimeError:  # no thread to be had: the next call gathers its rows itself
            return
        self.pending[function] = PendingRows(token, arrays)

    def _submit(self, source: RowsToGather) -> Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="synk-gather")
        array, rows, memory = source
        # Chosen here: a memory has no lock, and slices of this call use it too.
        target = memory((len(rows), *array.shape[1:]), array.dtype)
        return self._thread.submit(_gather, array, rows, target)

    def take(self, function: int, token: int) -> dict[int, Any]:
        """Return the rows that were gathered under a token, by position of the input; drop any others.

        The caller gathers the rows of inputs that are missing here, because they are small. Raises the error
        that gathering the rows has raised.
        """
        pending = self.pending.pop(function, None)
        if pending is None or pending.token != token:
            return {}
        return {position: future.result() for position, future in pending.arrays.items()}

    def forget(self, function: int) -> None:
        """Free the memory and the rows that are kept for a function."""
        self.pending.pop(function, None)
        for key in list(self._of_inputs):  # a finalizer may come here while memories are made
            if key[0] == function:
                self._of_inputs.pop(key, None)

    def close(self) -> None:
        """Free everything and end the thread; it starts again when there is something to do."""
        self.pending.clear()
        self._of_inputs.clear()
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.shutdown(wait=True, cancel_futures=True)


def _nbytes(source: RowsToGather) -> int:
    return len(source.rows) * math.prod(source.array.shape[1:]) * source.array.dtype.itemsize


def _gather(array: Any, rows: SelectedRows, target: Any) -> Any:
    return rows.of(array, lambda shape, dtype: target)
