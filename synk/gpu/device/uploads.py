"""Copy rows of a batch to a GPU while it computes.

    Uploader.buffers(function, position) -> InputBuffers
    InputBuffers.take(request)  -> an array on the GPU, for the program that runs now
    InputBuffers.start(request) -> rows gathered and copied by a thread, for the next one

Each input has two buffers that take turns: one holds the rows that a program reads, the other those that come
next. This has run on the tests' replacement of CuPy only, and on no GPU yet.
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

# Estimated without a GPU: rows of less than SMALL_BYTES are left to CuPy's own copy, and rows of less than
# AHEAD_BYTES are not worth waking a thread for.
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
    """An upload that `InputBuffers.start` has begun."""

    key: Any
    buffer: InputBuffer
    done: Future[None]  # when their copy has been launched


class Uploader:
    """All uploads to one rank's GPU: a copying stream, a thread for the next rows, threads that gather.

    These are made for the first large input, not before. Programs are launched in the stream ``computing``;
    ``bind`` makes the calling thread use the GPU; ``recording`` is a lock that is held while launches in that
    stream are recorded.
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
        """Return whether rows of an array may be uploaded through these buffers.

        Vectors of integers and booleans may not: they may be lengths or conditions, which programs read on
        the host.
        """
        return array.flags.c_contiguous and (array.ndim > 1 or array.dtype.kind not in "iub")

    def buffer(self) -> InputBuffer:
        """Return a new buffer; the first call also makes the copying stream."""
        if self._streams is None:
            copying = self.xp.cuda.Stream(non_blocking=True)
            self._streams = Streams(self._computing, copying, self._recording)
        return InputBuffer(self.xp, self._streams)

    def submit(self, task: Callable[..., None], *arguments: Any) -> Future[None]:
        """Run a task on the thread for the next rows; RuntimeError if the thread cannot be started."""
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, thread_name_prefix="synk-feed", initializer=self.bind)
        return self._ahead.submit(task, *arguments)

    def gather(self, array: Any, parts: list[SelectedRows], targets: list[NDArray[Any]]) -> Iterable[Any]:
        """Copy parts of the rows to ``targets``, on several threads if it has them; yield after each."""
        arrays = [array] * len(parts)
        if self._n_threads > 1 and len(parts) > 1:
            with self._making:  # both the calling thread and the one for the next rows may get here
                if self._gatherers is None:
                    self._gatherers = ThreadPoolExecutor(self._n_threads, thread_name_prefix="synk-gather")
            with suppress(RuntimeError):  # the system refuses a thread: gather without
                return self._gatherers.map(copy_rows, arrays, parts, targets)
        return map(copy_rows, arrays, parts, targets)

    def load(self, buffer: InputBuffer, request: Request) -> None:
        """Copy the requested rows to the GPU through ``buffer``."""
        buffer.load(request.array, request.rows, self.gather)

    def finish(self) -> None:
        """End a call, failed or not; all kernels that read its rows have been launched."""
        for buffers in list(self._buffers.values()):
            buffers.finish()
        while self._forgotten:
            self._forgotten.popleft().wait()

    def forget(self, function: int) -> None:
        """Release the buffers of a function; a finalizer may call this at any moment."""
        for key in list(self._buffers):
            if key[0] == function and (buffers := self._buffers.pop(key, None)):
                self._forgotten.append(buffers)  # kept until `finish`: a copy may still read them

    def close(self) -> None:
        """Wait for uploads, free all memory and end the threads; the uploader can be used again."""
        if self._streams is None:
            return
        self._forgotten.extend(self._buffers.values())
        self._buffers.clear()
        with suppress(RuntimeError):  # an error of CUDA was reported where it first occurred
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
        self._slots: list[InputBuffer] = []  # in the order in which they were last loaded
        self._pending: PendingUpload | None = None
        self._given: InputBuffer | None = None  # being read by a program

    def take(self, request: Request) -> Any:
        """Return the requested rows as an array on the GPU; upload them now unless `start` has done so.

        The caller must not read the rows of its previous `take` any more: their buffer is the next to be
        overwritten. That is safe, since a program keeps no view of its inputs.
        """
        self._retire()
        buffer = self._arrived(request.key)
        if buffer is None:
            buffer = self._next_buffer()
            self._uploader.load(buffer, request)
        self._given = buffer
        return buffer.hand_out()

    def start(self, request: Request) -> None:
        """Begin to upload rows for the next `take` with the same key, if they are large enough."""
        if request.nbytes < AHEAD_BYTES:
            return
        self._arrived(None)
        buffer = self._next_buffer()
        with suppress(RuntimeError):  # without a thread, `take` uploads them
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
        """Wait for the upload that `start` began; return its buffer if it is for ``key`` and did not fail."""
        coming = self._pending
        if coming is None:
            return None
        failed = coming.done.exception() is not None  # then `take` tries again, and may raise there
        self._pending = None
        return None if failed or coming.key != key else coming.buffer

    def _next_buffer(self) -> InputBuffer:
        """Return the buffer to load next: of the two, the older one that no program reads."""
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
    """Return whether rows are worth an upload through these buffers; CuPy copies a few bytes as fast."""
    return request.nbytes >= SMALL_BYTES
