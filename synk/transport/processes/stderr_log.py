"""Keep the standard error of a worker in memory that outlives the worker.

File descriptor 2 of a worker is a file in memory. The worker hands on to the real standard error what
is new there, at once where Python wrote it, else after every command; the master does so when the worker
has died, and quotes the end of it. A file never keeps its writer waiting, as a pipe with a busy reader does.

    StderrLog (master) -> take_over, deliver (worker) ... deliver, tail (master)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from synk.transport.processes.memory_file import MemoryFile

TAIL_BYTES = 4096
MASTER_SECONDS = 0.2  # in which who reads the master's standard error takes a page of it
TRIM_BYTES = 1 << 20  # what was delivered is thrown away beyond that

STDERR = 2


class StderrLog(MemoryFile):
    """The log of one worker's standard error, in a new file in memory or in ``file``, of another process.

    ``get_delivered`` and ``set_delivered`` read and write the number of bytes that were delivered, a word
    that the master and the worker share.
    """

    def __init__(
        self,
        get_delivered: Callable[[], int],
        set_delivered: Callable[[int], None],
        file: int | None = None,
    ):
        super().__init__("synk-stderr", file)
        self._get_delivered = get_delivered
        self._set_delivered = set_delivered
        self._real = STDERR
        self._patience: float | None = MASTER_SECONDS  # the master has an error to raise
        self._lock = threading.Lock()

    # --- in the worker -----------------------------------------------------------------------------

    def take_over(self) -> None:
        """Let this process write its standard error to the log from now on."""
        self._real = fcntl.fcntl(STDERR, fcntl.F_DUPFD_CLOEXEC, STDERR + 1)
        os.dup2(self._file, STDERR)
        self._patience = None
        if sys.stderr is not None:
            here = writes_to(sys.stderr, STDERR)
            sys.stderr = _Prompt(sys.stderr, (lambda text: self.deliver()) if here else self._note)

    def _note(self, text: str) -> None:
        """Add a text to the log that Python has printed elsewhere, such as to a notebook."""
        self.deliver()  # else what C wrote before would count as delivered
        _write_all(self._file, text.encode(errors="replace"))
        self._set_delivered(os.fstat(self._file).st_size)

    def deliver(self) -> None:
        """Write what is new in the log to the real standard error; of several threads one does it for all."""
        while self._is_behind() and self._lock.acquire(blocking=False):
            try:
                self._deliver_some()
            finally:
                self._lock.release()

    def _is_behind(self) -> bool:
        return self._file >= 0 and self._get_delivered() < os.fstat(self._file).st_size

    def _deliver_some(self) -> None:
        start, end = self._get_delivered(), os.fstat(self._file).st_size
        if start < end:
            _write_all(self._real, os.pread(self._file, end - start, start), self._patience)
            self._set_delivered(end)
            if end > TRIM_BYTES:
                self._trim()

    def _trim(self) -> None:
        tail = self._read_tail()
        os.ftruncate(self._file, 0)
        _write_all(self._file, tail)
        self._set_delivered(len(tail))

    # --- in the master -----------------------------------------------------------------------------

    def tail(self) -> str:
        """Return the last lines of the log."""
        tail = self._read_tail()
        if len(tail) == TAIL_BYTES:  # it may begin in the middle of a line
            tail = tail[tail.find(b"\n") + 1 :]
        return tail.decode(errors="replace")

    def _read_tail(self) -> bytes:
        end = os.fstat(self._file).st_size
        return os.pread(self._file, TAIL_BYTES, max(0, end - TAIL_BYTES))


def writes_to(stream: Any, descriptor: int) -> bool:
    """Tell whether a Python stream writes to this descriptor, and not, for example, to a notebook."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return bool(stream.fileno() == descriptor)
    return False


def _write_all(descriptor: int, text: bytes, seconds: float | None = None) -> None:
    """Write a text; give up if it cannot be written, or if nobody reads it for ``seconds``."""
    left, ready = memoryview(text), select.poll()
    ready.register(descriptor, select.POLLOUT)
    with contextlib.suppress(OSError):
        while left and (seconds is None or ready.poll(1000 * seconds)):
            left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]


class _Prompt:
    """A text stream that calls ``told(text)`` after each text that is written to it."""

    def __init__(self, stream: Any, told: Callable[[str], None]):
        self._stream = stream
        self._told = told

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        self._stream.flush()
        self._told(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
