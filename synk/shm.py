"""Segments of POSIX shared memory that leave no name behind.

A segment is created under a random name, which is unlinked at once; other processes attach
through its descriptor, which the channel carries. Whatever dies and whenever, the kernel frees
the memory with the last mapping.

    Segment.create -> descriptor over the channel -> Segment.attach -> array

Imports NumPy, posix_ipc and ``errors``.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import secrets
import weakref
from typing import Any

import numpy as np
import posix_ipc
from numpy.typing import NDArray

from synk.errors import SharedMemoryFull

DIRECTORY = "/dev/shm"
MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Segment:
    """A stretch of shared memory, mapped into this process.

    ``close`` drops the mapping once no array made from it is left.
    """

    def __init__(self, descriptor: int, nbytes: int):
        self.nbytes = nbytes
        self._descriptor: int | None = descriptor
        self._memory: Any = _mapped(descriptor, max(nbytes, 1))

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Create a segment of ``nbytes`` bytes, all zero, with the memory already set aside.

        Raises
        ------
        SharedMemoryFull
            If the file system of shared memory has no room, or the machine no memory.
        """
        # posix_ipc's own automatic names are predictable and collide.
        name = f"/synk-{secrets.token_hex(16)}"
        memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        try:
            memory.unlink()
            _allocate(memory.fd, nbytes)
            return cls(memory.fd, nbytes)
        except BaseException:
            os.close(memory.fd)
            raise

    @classmethod
    def attach(cls, descriptor: int, nbytes: int) -> Segment:
        """Map the segment behind ``descriptor``, which is then closed."""
        try:
            segment = cls(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        segment.seal()
        return segment

    @property
    def descriptor(self) -> int:
        """File descriptor to send to other processes, until `seal`."""
        assert self._descriptor is not None, "sealed segments have no descriptor"
        return self._descriptor

    def seal(self) -> None:
        """Close the descriptor: the mapping stays, nobody else can attach."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Return an array over the segment, starting at byte ``offset``."""
        assert self._memory is not None, "closed segments have no arrays"
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def words(self, count: int) -> memoryview:
        """Return the first ``count`` 8-byte signed integers: reads and writes take 30 ns."""
        assert self._memory is not None, "closed segments have no words"
        return memoryview(self._memory).cast("B")[: 8 * count].cast("q")

    def close(self) -> None:
        """Close the descriptor and let go of the mapping."""
        self.seal()
        # Arrays keep the memory; it is unmapped with the last of them.
        self._memory = None


def _mapped(descriptor: int, nbytes: int) -> Any:
    """Return the memory behind ``descriptor`` as a buffer that unmaps it when dropped.

    Python's own mmap keeps a duplicate of the descriptor for as long: one for every array.
    """
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == MAP_FAILED:
        raise OSError(ctypes.get_errno(), "shared memory cannot be mapped")
    memory = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return memory


def _allocate(descriptor: int, nbytes: int) -> None:
    os.ftruncate(descriptor, max(nbytes, 1))
    try:
        # Without this a full file system is found out by SIGBUS at the first touch.
        os.posix_fallocate(descriptor, 0, max(nbytes, 1))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise SharedMemoryFull(_full_message(nbytes)) from error


def _full_message(nbytes: int) -> str:
    usage = os.statvfs(DIRECTORY)
    free, limit = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    return (
        f"shared memory is full: needed {_mib(nbytes)}, free {_mib(free)} of {_mib(limit)} in {DIRECTORY}; "
        "drop Data that is no longer used, or raise the limit (in a container: --shm-size)"
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
