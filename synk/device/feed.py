"""Rows of a batch, brought to a GPU while it computes.

    Feeder.lane(function, position) -> Lane.take(order) -> an array on the GPU, for the program that runs now
                                    -> Lane.start(order): gathered and copied by a thread, for the next one

Each input has two slots, by turns: the rows that are being read, and those that come next. Has run on a
stand-in for CuPy only, and on no GPU yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from synk.device.locks import Locks
from synk.device.slots import Slot, Streams
from synk.values.rows import Rows

# Judged without a GPU: what CuPy copies by itself, and what is worth waking a thread for.
SMALL_BYTES = 1 << 16
AHEAD_BYTES = 1 << 18


class Order(NamedTuple):
    """Rows of an array, and what they are asked for by."""

    key: Any
    array: NDArray[Any]  # on the host, C contiguous
    rows: Rows
    memory: Any = None  # of the segment that the array is in, if it may be page-locked

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return len(self.rows) * prod(self.array.shape[1:]) * self.array.dtype.itemsize


class Coming(NamedTuple):
    """Rows that are on their way."""

    key: Any
    slot: Slot
    done: Future[None]  # when their copy has been launched


class Feeder:
    """The feed of one rank's GPU: a stream that copies, a thread that works ahead, threads that gather.

    Nothing is made before the first large input.

    Parameters
    ----------
    xp : module
        CuPy.
    computing : stream
        Where programs are launched.
    bind : callable
        Has the calling thread use the GPU.
    threads : int
        That gather rows together.
    recording : context manager
        Held while launches of ``computing`` are recorded.
    """

    def __init__(
        self,
        xp: Any,
        computing: Any,
        bind: Callable[[], None],
        threads: int = 1,
        recording: AbstractContextManager[Any] | None = None,
    ):
        self.xp = xp
        self.bind = bind
        self._computing = computing
        self._n_threads = threads
        self._recording = nullcontext() if recording is None else recording
        self._streams: Streams | None = None
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._forgotten: deque[Lane] = deque()
        self._ahead: ThreadPoolExecutor | None = None
        self._gatherers: ThreadPoolExecutor | None = None
        self._making = threading.Lock()
        self._locks = Locks(xp.cuda.runtime, self._settle)

    def lane(self, function: int, position: int) -> Lane:
        """Return the way of one input of a function."""
        lane = self._lanes.get((function, position))
        if lane is None:
            lane = self._lanes[function, position] = Lane(self)
        return lane

    @staticmethod
    def suits(array: NDArray[Any]) -> bool:
        """Tell whether rows of an array go this way, if they are large.

        Vectors of whole numbers may be lengths or conditions, which programs read on the host.
        """
        return array.flags.c_contiguous and (array.ndim > 1 or array.dtype.kind not in "iub")

    def slot(self) -> Slot:
        """Make a slot."""
        if self._streams is None:
            copying = self.xp.cuda.Stream(non_blocking=True)
            self._streams = Streams(self._computing, copying, self._recording)
        return Slot(self.xp, self._streams)

    def submit(self, task: Callable[..., None], *arguments: Any) -> Future[None]:
        """Run a task on the thread that works ahead.

        Raises
        ------
        RuntimeError
            If the thread cannot be started.
        """
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, thread_name_prefix="synk-feed", initializer=self.bind)
        return self._ahead.submit(task, *arguments)

    def gather(self, array: Any, parts: list[Rows], targets: list[NDArray[Any]]) -> Iterable[Any]:
        """Gather rows, part by part; several threads do so where there are several parts."""
        arrays = [array] * len(parts)
        if self._n_threads > 1 and len(parts) > 1:
            with self._making:  # who works ahead comes here too
                if self._gatherers is None:
                    self._gatherers = ThreadPoolExecutor(self._n_threads, thread_name_prefix="synk-gather")
            with suppress(RuntimeError):  # no thread to be had
                return self._gatherers.map(copy_rows, arrays, parts, targets)
        return map(copy_rows, arrays, parts, targets)

    def load(self, slot: Slot, order: Order) -> None:
        """Copy rows into a slot."""
        in_place = order.rows.indices is None and order.memory is not None and self._locks.hold(order.memory)
        slot.load(order.array, order.rows, self.gather, in_place)

    def finish(self) -> None:
        """End a call, well or not: all that reads its rows has been launched."""
        for lane in list(self._lanes.values()):
            lane.finish()
        while self._forgotten:
            self._forgotten.popleft().wait()
        self._locks.sweep()

    def sweep(self) -> None:
        """Give back memory that was let go of elsewhere."""
        self._locks.sweep()

    def _settle(self) -> None:
        if self._streams is not None:
            self.bind()
            self._streams.copying.synchronize()

    def forget(self, function: int) -> None:
        """Let go of what was kept for a function; safe in finalizers, at any moment."""
        for key in list(self._lanes):
            if key[0] == function and (lane := self._lanes.pop(key, None)):
                self._forgotten.append(lane)  # its memory may be copied from at this moment

    def close(self) -> None:
        """Wait for what is on its way, free everything and end the threads; it can be used again."""
        if self._streams is None:
            return
        self._forgotten.extend(self._lanes.values())
        self._lanes.clear()
        with suppress(RuntimeError):  # of CUDA: who met it first has told
            self.bind()
            self.finish()
        self._forgotten.clear()
        self._locks.close()
        self._streams = None
        for threads in (self._ahead, self._gatherers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        self._ahead = self._gatherers = None


class Lane:
    """The way of one input of a function, two slots wide."""

    def __init__(self, feeder: Feeder):
        self._feeder = feeder
        self._slots: list[Slot] = []  # what was loaded last comes last
        self._coming: Coming | None = None
        self._given: Slot | None = None  # being read by a program
        self._direct: Slot | None = None  # copied from where the caller's rows are

    def take(self, order: Order) -> Any:
        """Return rows on the GPU; those that were handed out before are read no more.

        Returns
        -------
        array of the GPU
            Overwritten by the next but one: a program keeps no view of its inputs.
        """
        self._retire()
        slot = self._arrived(order.key)
        if slot is None:
            slot = self._next_slot()
            self._feeder.load(slot, order)
        self._given = slot
        if slot.is_direct:
            self._direct = slot
        return slot.hand_out()

    def start(self, order: Order) -> None:
        """Begin to bring rows for the next `take` that asks by the same key."""
        if order.nbytes < AHEAD_BYTES:
            return
        self._arrived(None)
        slot = self._next_slot()
        with suppress(RuntimeError):  # no thread: `take` does it then
            self._coming = Coming(order.key, slot, self._feeder.submit(self._feeder.load, slot, order))

    def finish(self) -> None:
        """End a call: its caller may write to the rows from now on."""
        self._retire()
        slot, self._direct = self._direct, None
        if slot is not None:
            slot.wait()

    def wait(self) -> None:
        """Wait until nothing is on its way."""
        self._arrived(None)
        for slot in self._slots:
            slot.wait()

    def _retire(self) -> None:
        slot, self._given = self._given, None
        if slot is not None:
            slot.retire()

    def _arrived(self, key: Any) -> Slot | None:
        """Return the slot of what was started, when its copy has been launched; None if it was another's."""
        coming = self._coming
        if coming is None:
            return None
        failed = coming.done.exception() is not None  # then `take` fails again where it can be told, or not
        self._coming = None
        return None if failed or coming.key != key else coming.slot

    def _next_slot(self) -> Slot:
        """Return the slot to load next: the one that was not loaded last, nor is being read."""
        if len(self._slots) < 2:
            self._slots.append(self._feeder.slot())
        else:
            self._slots.append(self._slots.pop(self._slots[0] is self._given))
        return self._slots[-1]


def copy_rows(array: Any, rows: Rows, target: NDArray[Any]) -> None:
    """Copy rows to where they are to be."""
    if rows.indices is None:
        target[...] = rows.of(array)
    else:
        rows.of(array, lambda shape, dtype: target)


def is_large(order: Order) -> bool:
    """Tell whether rows are worth a way of their own; few bytes go with what CuPy does by itself."""
    return order.nbytes >= SMALL_BYTES
