"""Shared memory that is page-locked, so that a GPU fetches rows from where they are.

    memory of a segment -> PageLocks.hold -> hostRegister ... nobody else holds it -> sweep -> hostUnregister

What is registered is held, so it is not unmapped before it is given back. Has run on a stand-in for CuPy
only, and on no GPU yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

ALONE = 2  # references: the record's, and the argument of getrefcount
MOST_BYTES = 4 << 30  # in all: page-locking takes seconds for what is larger, and nobody else can have it


class PageLock(NamedTuple):
    """Memory, and its address where it is page-locked; None where that was refused."""

    memory: Any
    nbytes: int
    address: int | None


class PageLocks:
    """The memory that one process has page-locked, by CuPy's ``cuda.runtime``.

    ``settle`` returns when no copy is under way, with the GPU bound to the calling thread.
    """

    def __init__(self, runtime: Any, settle: Callable[[], None]):
        self._runtime = runtime
        self._settle = settle
        self._held: dict[int, PageLock] = {}  # by identity of the memory
        self._turn = threading.Lock()  # one thread may call a function, another make Data

    def hold(self, memory: Any) -> bool:
        """Page-lock memory, unless it is; return whether it is now.

        Refused beyond `MOST_BYTES`, and by systems with a limit on such memory.
        """
        with self._turn:
            lock = self._held.get(id(memory))
            if lock is None:
                lock = self._held[id(memory)] = self._lock(memory)
            return lock.address is not None

    def _lock(self, memory: Any) -> PageLock:
        whole = np.frombuffer(memory, np.uint8)
        address: int | None = whole.__array_interface__["data"][0]
        locked = sum(lock.nbytes for lock in self._held.values() if lock.address is not None)
        try:
            if locked + whole.nbytes > MOST_BYTES:
                address = None
            else:
                self._runtime.hostRegister(address, whole.nbytes, 0)
        except RuntimeError:  # rows are gathered then
            address = None
        return PageLock(memory, whole.nbytes, address)

    def sweep(self) -> None:
        """Give back what nobody else holds any more."""
        with self._turn:
            for key in [key for key, lock in self._held.items() if sys.getrefcount(lock.memory) == ALONE]:
                self._settle()
                self._unregister(key)

    def close(self) -> None:
        """Give back everything; no copy is under way."""
        with self._turn:
            for key in list(self._held):
                with suppress(RuntimeError):  # a GPU that failed takes nothing back
                    self._unregister(key)

    def _unregister(self, key: int) -> None:
        address = self._held[key].address
        try:
            if address is not None:
                self._runtime.hostUnregister(address)
        finally:
            del self._held[key]  # in any case: a second time would be refused
