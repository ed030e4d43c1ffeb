"""Read the Python stacks of a worker, even while it hangs.

The worker's handler of one real-time signal is written in C: it writes the stacks of all Python threads to a
file in memory without running any Python, so a loop in native code cannot keep it from answering.

    Stacks (master) -> answer (worker) ... ask, read (master)
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import time

from synk.transport.processes.memory_file import MemoryFile
from synk.transport.processes.process import Process

SIGNAL = signal.SIGRTMIN + 5  # scripts hardly ever use one of those
READ_SECONDS = 0.5  # for a worker to answer
STACK_BYTES = 1 << 20  # of the stack of handlers; pages that nothing touches take no memory
QUIET_SECONDS = 0.02  # without a further line: the answer is complete


class Stacks(MemoryFile):
    """The stacks of one worker, which it writes to a file in memory that the master reads."""

    def __init__(self, file: int | None = None):
        super().__init__("synk-stacks", file)
        self._asked = 0.0

    def answer(self) -> None:
        """In the worker: write stacks here when asked."""
        faulthandler.register(SIGNAL, file=self._file, all_threads=True, chain=False)
        self._memory_of_handlers = widen_signal_stack()  # kept for as long as the process lives

    def ask(self, process: Process) -> None:
        """In the master: have the worker write its stacks; one that is stopped does not."""
        os.ftruncate(self._file, 0)
        self._asked = time.monotonic()
        if not process.stopped() and not process.wait(0):
            process.signal(SIGNAL)
        else:
            self._asked -= READ_SECONDS

    def read(self) -> str:
        """In the master: return the answer, or "" where there is none."""
        length, changed = 0, self._asked
        while True:
            now, size = time.monotonic(), os.fstat(self._file).st_size
            if size != length:
                length, changed = size, now
            if now - self._asked >= READ_SECONDS or (length and now - changed >= QUIET_SECONDS):
                return os.pread(self._file, length, 0).decode(errors="replace")
            time.sleep(QUIET_SECONDS / 10)


class _SignalStack(ctypes.Structure):
    """``stack_t`` of signal.h."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def widen_signal_stack() -> mmap.mmap:
    """Give signal handlers of this thread a larger stack than faulthandler does; return it, to be kept.

    Signals that come together are handled one inside the other. For each, new processors save many registers,
    so that six of them are too much for the stack of faulthandler.
    """
    memory = mmap.mmap(-1, STACK_BYTES)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.CDLL(None).sigaltstack(ctypes.byref(_SignalStack(start, 0, STACK_BYTES)), None)
    return memory
