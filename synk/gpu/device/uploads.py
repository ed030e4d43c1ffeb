"""Rows of a batch, brought to a GPU while it computes.

    Uploader.buffers(function, position) -> InputBuffers
    InputBuffers.take(request)  -> an array on the GPU, for the program that runs now
    InputBuffers.start(request) -> rows gathered and copied by a thread, for the next one

Each input has two buffers, by turns: the rows that are being read, and those that come next. Has run on a
stand-in for CuPy only, and on no GPU yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from math import prod
from typing import Any, NamedTuple

from numpy.typing import NDArray

from synk.gpu.device.input_buffers import InputBuffer, Streams
from synk.values.rows import SelectedRows

# Judged without a GPU: what CuPy copies by itself, and what is worth waking a thread for.
SMALL_BYTES = 1 << 16
AHEAD_BYTES = 1 << 18


class Request(NamedTuple):
    """Rows of an array to be uploaded, and the key by which `InputBuffers.take` finds them again."""

    key: Any
    array: NDArray[Any]  # on the host, C contiguous
    rows: SelectedRows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return len(self.rows) * prod(self.array.shape[1:]) * self.array.dtype.itemsize


class PendingUpload(NamedTuple):
    """Rows whose upload has begun."""

    key: Any
    buffer: InputBuffer
    done: Future[None]  # when their copy has been launched


class Uploader:
    """The uploads to one rank's GPU: a stream that copies, a thread that works ahead, threads that gather.

    Nothing is made before the first large input. Programs are launched in the stream ``computing``; ``bind``
    has the calling thread use the GPU, and ``recording`` is held while launches of that stream are recorded.
    """

    def __init__(
        self,
        xp: Any,
        computing: Any,
        bind: Callable[[], None],
        threads: int,
        recording: AbstractContextManager[Any],
    ):
        self.xp = xp
        self.bind = bind
        self._computing = computing
        self._n_threads = threads
        self._recording = recording
        self._streams: Streams | None = None
        self._buffers: dict[tuple[int, int], InputBuffers] = {}
        self._forgotten: deque[InputBuffers] = deque()
        self._ahead: ThreadPoolExecutor | None = None
        self._gatherers: ThreadPoolExecutor | None = None
        self._making = threading.Lock()

    def buffers(self, function: int, position: int) -> InputBuffers:
        """Return the buffers through which one input of a function reaches the GPU."""
        buffers = self._buffers.get((function, position))
        if buffers is None:
            buffers = self._buffers[function, position] = InputBuffers(self)
        return buffers

    @staticmethod
    def suits(array: NDArray[Any]) -> bool:
        """Tell whether large numbers of rows of an array may be uploaded through these buffers.

        Vectors of integers and booleans may not: they may be lengths or conditions, which programs read on
        the host.
        """
        return array.flags.c_contiguous and (array.ndim > 1 or array.dtype.kind not in "iub")

    def buffer(self) -> InputBuffer:
        """Return a new buffer; the first call also makes the stream that copies."""
        if self._streams is None:
            copying = self.xp.cuda.Stream(non_blocking=True)
            self._streams = Streams(self._computing, copying, self._recording)
        return InputBuffer(self.xp, self._streams)

    def submit(self, task: Callable[..., None], *arguments: Any) -> Future[None]:
        """Run a task on the thread that works ahead; RuntimeError if that cannot be started."""
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, thread_name_prefix="synk-feed", initializer=self.bind)
        return self._ahead.submit(task, *arguments)

    def gather(self, array: Any, parts: list[SelectedRows], targets: list[NDArray[Any]]) -> Iterable[Any]:
        """Gather rows, part by part; several threads do so where there are several parts."""
        arrays = [array] * len(parts)
        if self._n_threads > 1 and len(parts) > 1:
            with self._making:  # who works ahead comes here too
                if self._gatherers is None:
                    self._gatherers = ThreadPoolExecutor(self._n_threads, thread_name_prefix="synk-gather")
            with suppress(RuntimeError):  # no thread to be had
                return self._gatherers.map(copy_rows, arrays, parts, targets)
        return map(copy_rows, arrays, parts, targets)

    def load(self, buffer: InputBuffer, request: Request) -> None:
        """Copy rows into a buffer."""
        buffer.load(request.array, request.rows, self.gather)

    def finish(self) -> None:
        """End a call, whether it has failed or not, once all work that reads its rows has been launched."""
        for buffers in list(self._buffers.values()):
            buffers.finish()
        while self._forgotten:
            self._forgotten.popleft().wait()

    def forget(self, function: int) -> None:
        """Release the buffers of a function; safe in finalizers, at any moment."""
        for key in list(self._buffers):
            if key[0] == function and (buffers := self._buffers.pop(key, None)):
                self._forgotten.append(buffers)  # its memory may be copied from at this moment

    def close(self) -> None:
        """Wait for uploads in progress, free all memory, end the threads; the uploader can be used again."""
        if self._streams is None:
            return
        self._forgotten.extend(self._buffers.values())
        self._buffers.clear()
        with suppress(RuntimeError):  # of CUDA: who met it first has told
            self.bind()
            self.finish()
        self._forgotten.clear()
        self._streams = None
        for threads in (self._ahead, self._gatherers):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        self._ahead = self._gatherers = None


class InputBuffers:
    """The two buffers through which one input of a function reaches the GPU, used in turn."""

    def __init__(self, uploader: Uploader):
        self._uploader = uploader
        self._slots: list[InputBuffer] = []  # what was loaded last comes last
        self._pending: PendingUpload | None = None
        self._given: InputBuffer | None = None  # being read by a program

    def take(self, request: Request) -> Any:
        """Return the requested rows on the GPU, uploaded by `start` or else now.

        The caller reads the rows of the `take` before this one no more. Their buffer is overwritten at the
        next but one, since a program keeps no view of its inputs.
        """
        self._retire()
        buffer = self._arrived(request.key)
        if buffer is None:
            buffer = self._next_buffer()
            self._uploader.load(buffer, request)
        self._given = buffer
        return buffer.hand_out()

    def start(self, request: Request) -> None:
        """Begin to upload rows for the next `take` with the same key, if they are large."""
        if request.nbytes < AHEAD_BYTES:
            return
        self._arrived(None)
        buffer = self._next_buffer()
        with suppress(RuntimeError):  # no thread: `take` does it then
            self._pending = PendingUpload(
                request.key, buffer, self._uploader.submit(self._uploader.load, buffer, request)
            )

    def finish(self) -> None:
        """End a call once all work that reads its rows has been launched."""
        self._retire()

    def wait(self) -> None:
        """Wait until no upload is in progress."""
        self._arrived(None)
        for buffer in self._slots:
            buffer.wait()

    def _retire(self) -> None:
        buffer, self._given = self._given, None
        if buffer is not None:
            buffer.retire()

    def _arrived(self, key: Any) -> InputBuffer | None:
        """Return the buffer that `start` loads for ``key``, once its copy is launched; else None."""
        coming = self._pending
        if coming is None:
            return None
        failed = coming.done.exception() is not None  # then `take` fails again where it can be told, or not
        self._pending = None
        return None if failed or coming.key != key else coming.buffer

    def _next_buffer(self) -> InputBuffer:
        """Return the buffer to load next: the one that was not loaded last, nor is being read."""
        if len(self._slots) < 2:
            self._slots.append(self._uploader.buffer())
        else:
            self._slots.append(self._slots.pop(self._slots[0] is self._given))
        return self._slots[-1]


def copy_rows(array: Any, rows: SelectedRows, target: NDArray[Any]) -> None:
    """Copy rows of ``array`` to ``target``."""
    if rows.indices is None:
        target[...] = rows.of(array)
    else:
        rows.of(array, lambda shape, dtype: target)


def is_large(request: Request) -> bool:
    """Tell whether rows are worth an upload through buffers of ours; CuPy copies a few bytes by itself."""
    return request.nbytes >= SMALL_BYTES
