"""oneDNN as a process uses it: one engine, one stream, one workspace, one thread.

oneDNN asks OpenMP for the number of threads when a primitive is created, and again when it runs. OpenMP's
pool does not survive a fork: a child of a process that computed with two threads hangs. So the number is one
unless `threads` sets another: ranks run in parallel, the kernels of a rank need not.

All kernels share one workspace: oneDNN's scratchpads, and weights in its own order of axes, live only while
one kernel runs. A lock keeps Python threads from using it at the same time.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from typing import Any

import numpy as np

from synk.compile.native import find_onednn
from synk.ops.kernels.onednn import binding
from synk.ops.kernels.onednn.binding import created

PAGE = 4096  # bytes; also where buffers in the workspace start


class Workspace:
    """Scratch memory for the kernel that runs; it grows to what the most demanding kernel needs.

    It has ``size`` bytes, and starts at ``address``, the start of a page; growing moves it.
    """

    def __init__(self) -> None:
        self.size = self.address = 0
        self._buffer: Any = None

    def grow(self, size: int) -> None:
        """Grow to at least ``size`` bytes; the contents are lost."""
        if size > self.size:
            self._buffer = None  # freed first, so that old and new memory never exist at once
            self._buffer = np.empty(size + PAGE, "uint8")
            start = self._buffer.ctypes.data
            self.address = start + -start % PAGE
            self.size = size


class Engine:
    """The library with its engine, stream and workspace; its lock is held while a kernel is made or runs."""

    def __init__(self, found: Any):
        self.api = binding.bind(found)
        self.handle = created(self.api.dnnl_engine_create, binding.CPU, 0)
        self.stream = created(self.api.dnnl_stream_create, self.handle, binding.IN_ORDER)
        self.workspace = Workspace()
        self.threads = 1  # with which primitives are created and run
        # A library's handle also finds functions of the libraries that it is linked to: here oneDNN's OpenMP.
        self._get_threads = getattr(found, "omp_get_max_threads", lambda: 1)
        self.set_threads = getattr(found, "omp_set_num_threads", lambda number: None)
        self.renew_lock()
        os.register_at_fork(after_in_child=self.renew_lock)

    def renew_lock(self) -> None:
        """Make a new lock: in a forked child the old one may be held by a thread that only the parent has."""
        self.lock = threading.RLock()

    def use_threads(self) -> int:
        """Set OpenMP's number of threads to ``threads``; return the old one, to be restored by `set_threads`.

        The number is a setting of the calling thread, and other libraries that use OpenMP follow it, too.
        """
        before = self._get_threads()
        self.set_threads(self.threads)
        return before


@cache
def engine() -> Engine:
    """Return the engine of this process, which children inherit; raise OneDnnError if oneDNN is not found."""
    found = find_onednn.find()
    if found.library is None:
        raise binding.OneDnnError(found.reason)
    return Engine(found.library)


def threads(number: int) -> None:
    """Compute with ``number`` threads from now on.

    With more than one, this process must not fork after its first kernel: its children would hang.
    """
    if number < 1:
        raise ValueError(f"threads({number}): compute with one thread or more")
    engine().threads = number
