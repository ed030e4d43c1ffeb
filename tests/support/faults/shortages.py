"""Things that a machine runs out of: room in shared memory, file sizes, descriptors, processes.

with shortage(ordeal): deeds -> refused; afterwards there is as much as before
"""

import contextlib
import errno
import os
import resource

SHARED_MEMORY = "/dev/shm"
LEFT = 1 << 15  # bytes that are left free


@contextlib.contextmanager
def full(ordeal):
    """Fill /dev/shm if it is private to this run, else make its allocation fail."""
    if not ordeal.private:
        with _replaced("posix_fallocate", OSError(errno.ENOSPC, "no space left, it is said"), 0):
            yield
        return
    usage = os.statvfs(SHARED_MEMORY)
    filler = os.path.join(SHARED_MEMORY, "filler")
    descriptor = os.open(filler, os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, usage.f_bavail * usage.f_frsize - LEFT)
        yield
    finally:
        os.close(descriptor)
        os.unlink(filler)


@contextlib.contextmanager
def small_files(ordeal):
    """Allow files, segments among them, of a few pages only."""
    with _limited(os.getpid(), resource.RLIMIT_FSIZE, LEFT // 8):
        yield


@contextlib.contextmanager
def few_descriptors(ordeal):
    """Allow the master at most a few descriptors more than it has."""
    with _limited(os.getpid(), resource.RLIMIT_NOFILE, _first_free() + ordeal.draw(0, 2)):
        yield


@contextlib.contextmanager
def few_descriptors_at_worker(ordeal):
    """Allow a worker no descriptor more than it has."""
    with _limited(ordeal.pids[ordeal.draw(1, ordeal.n_ranks - 1)], resource.RLIMIT_NOFILE, 3):
        yield


@contextlib.contextmanager
def no_processes(ordeal):
    """Make the system refuse a fork, at first or after some."""
    refusal = BlockingIOError(errno.EAGAIN, "no process is left, it is said")
    with _replaced("fork", refusal, ordeal.draw(0, ordeal.n_ranks - 2)):
        yield


def _first_free():
    """Return the descriptor that the next open would get."""
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


@contextlib.contextmanager
def _limited(pid, kind, value):
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (value, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # the run may have ended meanwhile
            resource.prlimit(pid, kind, (soft, hard))


@contextlib.contextmanager
def _replaced(name, error, after):
    """Make a function of ``os`` raise, after it was called ``after`` times."""
    original, calls = getattr(os, name), iter(range(after))

    def refuse(*arguments):
        if next(calls, None) is None:
            raise error
        return original(*arguments)

    setattr(os, name, refuse)
    try:
        yield
    finally:
        setattr(os, name, original)
