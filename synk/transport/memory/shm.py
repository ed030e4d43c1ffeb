"""Segments of POSIX shared memory that leave no name behind.

A segment never has a name; other processes attach through its descriptor, which the channel carries.
Whichever process dies, the kernel frees the memory when the last mapping of it is gone. A part of a file on
disk can be a segment, too.

    Segment.create -> descriptor over the channel -> Segment.attach -> array
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import secrets
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
from numpy.typing import NDArray

from synk.transport.memory.limits import MemoryLimits, Shortage, file_size_limit
from synk.values.errors import SharedMemoryFull

DIRECTORY = "/dev/shm"
FILE_SYSTEM_HINT = "drop Data that is no longer used, or raise the limit (in a container: --shm-size)"
NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)  # what file systems without them say
MAP_FAILED = ctypes.c_void_p(-1).value
MAP_FIXED = 0x10  # Linux's on every processor that Python runs on; the mmap module does not tell it
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # told from Python 3.13 on

# In one piece, handlers of signals would wait for the end; and kernels that let a signal interrupt undo what
# was done and begin anew, which with a fast timer has no end.
CHUNK_BYTES = 1 << 18
LOOK_BYTES = 64 << 20  # between looks at the limits, while others take memory too

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


class Segment:
    """A part of shared memory or of a file, from byte ``offset`` of the file on, mapped into this process.

    ``seal`` closes the file; ``close`` unmaps the memory once no array over it is left.

    A signal handler may raise between any two lines, so files and mappings belong, from the moment they
    exist, to objects that free them in C.
    """

    def __init__(self, file: FileIO, nbytes: int, offset: int = 0, writable: bool = True):
        self.nbytes, self.offset, self.writable = nbytes, offset, writable
        self._start = offset % mmap.ALLOCATIONGRANULARITY  # of the first byte in the mapping
        self._memory: Any = _mapped(
            file.fileno(), max(nbytes, 1) + self._start, offset - self._start, writable
        )
        self._file: FileIO | None = file

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        """Create a segment of ``nbytes`` bytes, all zero, with the memory already set aside.

        Raises SharedMemoryFull if the file system of shared memory has no room, or the machine or the
        container no memory.
        """
        file = _new_file()
        try:
            _allocate(file.fileno(), nbytes)
            return cls(file, nbytes)
        except BaseException:
            file.close()
            raise

    @classmethod
    def attach(cls, descriptor: int, nbytes: int, offset: int = 0, writable: bool = True) -> Segment:
        """Map the segment behind ``descriptor``, which is then closed."""
        with FileIO(descriptor, "r+" if writable else "r") as file:
            segment = cls(file, nbytes, offset, writable)
        segment.seal()
        return segment

    @property
    def descriptor(self) -> int:
        """The file descriptor, by which other processes attach the segment; there is none after `seal`."""
        assert self._file is not None, "sealed segments have no descriptor"
        return self._file.fileno()

    @property
    def file_bytes(self) -> int:
        """The present length of the file, before `seal`: others may cut it, and reading beyond is SIGBUS."""
        return os.fstat(self.descriptor).st_size

    def seal(self) -> None:
        """Close the descriptor: the mapping stays, but no further process can attach the segment."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Return an array over the segment, starting at byte ``offset``."""
        assert self._memory is not None, "closed segments have no arrays"
        return np.ndarray(shape, dtype, buffer=self._memory, offset=self._start + offset)

    def words(self, count: int) -> memoryview:
        """Return the first ``count`` 8-byte signed integers: reads and writes take 30 ns."""
        assert self._memory is not None, "closed segments have no words"
        return memoryview(self._memory).cast("B")[: 8 * count].cast("q")

    def close(self) -> None:
        """Close the descriptor and drop the mapping, which arrays over it may keep."""
        self.seal()
        # Arrays keep the memory; it is unmapped with the last of them.
        self._memory = None


def _new_file() -> FileIO:
    """Return an empty file in the file system of shared memory."""
    try:
        return _nameless_file()
    except OSError as error:
        if error.errno not in NO_NAMELESS_FILES:
            raise
        return _unlinked_file()


def _nameless_file() -> FileIO:
    # In C from the opening to the owner, so no handler of a signal can come between.
    (file,) = map(
        FileIO, map(os.open, [DIRECTORY], [os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC], [0o600]), ["r+"]
    )
    return file


def _unlinked_file() -> FileIO:
    """Make a file under a random name and unlink it at once; a process killed between leaves the file."""
    # posix_ipc's own automatic names are predictable and collide.
    name = f"/synk-{secrets.token_hex(16)}"
    try:
        memory = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600)
        memory.unlink()
        return FileIO(memory.fd, "r+")
    except posix_ipc.ExistentialError:  # it is someone else's
        raise
    except BaseException:
        _undo(name)
        raise


def _mapped(descriptor: int, nbytes: int, offset: int, writable: bool) -> Any:
    """Return the memory behind ``descriptor`` as a buffer that unmaps it when dropped.

    Python's mmap keeps a duplicate of a descriptor open as long as its mapping: one for every array. So it is
    asked for anonymous memory instead, which needs no descriptor, and the segment is mapped over that, at the
    same address. The anonymous memory is never touched. Nor is it reserved, because a file may be larger than
    all memory that there is.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | MAP_NORESERVE, protection)
    address = np.ndarray((1,), np.uint8, buffer=memory).__array_interface__["data"][0]
    flags = mmap.MAP_SHARED | MAP_FIXED
    if _libc.mmap(address, nbytes, protection, flags, descriptor, offset) == MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"shared memory cannot be mapped: {os.strerror(code)}")
    return memory


def _undo(name: str) -> None:
    """Remove the name and close the descriptor of a segment, after an exception while it was being made."""
    with contextlib.suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_shared_memory(name)
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists is closed by now
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(DIRECTORY + name):
                os.close(int(descriptor))


def _allocate(descriptor: int, nbytes: int) -> None:
    """Allocate all pages of a file now, or raise an error that says why there is no memory for them.

    Otherwise a full file system would end the process by SIGBUS at the first touch, and a limit by SIGKILL.
    """
    size = max(nbytes, 1)
    _check_file_system(nbytes)
    for start in range(0, size, CHUNK_BYTES):
        if start % LOOK_BYTES == 0:
            _check_memory(nbytes, taken=start)
        try:
            if start == 0:
                os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, start, min(CHUNK_BYTES, size - start))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise _full(nbytes, *_file_system(), taken=start) from error


def _check_file_system(nbytes: int) -> None:
    """Raise SharedMemoryFull if a segment does not fit, before it fills the file system for others."""
    if nbytes > (limit := file_size_limit()):
        raise SharedMemoryFull(
            f"a segment of {nbytes} bytes is longer than this process's files may be, {limit} bytes "
            "(RLIMIT_FSIZE); raise that: ulimit -f unlimited, or LimitFSIZE= of a systemd unit"
        )
    room = _file_system()
    if room.limit and room.free < nbytes:  # without a limit it says 0
        raise _full(nbytes, *room)


def _check_memory(nbytes: int, taken: int) -> None:
    short = _memory_limits().shortage(nbytes - taken)
    if short is not None:
        raise _full(nbytes, *short, taken=taken)


@functools.cache
def _memory_limits() -> MemoryLimits:
    return MemoryLimits(Path("/proc"))


def _file_system() -> Shortage:
    usage = os.statvfs(DIRECTORY)
    free, limit = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    return Shortage(free, limit, DIRECTORY, FILE_SYSTEM_HINT)


def _full(nbytes: int, free: int, limit: int, where: str, hint: str, taken: int = 0) -> SharedMemoryFull:
    # What this segment has already is free again when it is given up.
    room = f"needed {_mib(nbytes)}, free {_mib(free + taken)} of {_mib(limit)} in {where}"
    return SharedMemoryFull(f"shared memory is full: {room}; {hint}")


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
