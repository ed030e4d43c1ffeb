"""Open folders and files that nobody but this user can have written.

Each folder is opened from the one above it, and no link is followed on the way. Owner and mode are read from
the open descriptor, so the file that is checked is the one that is read.

    path -> own_folder -> descriptor -> read_own_file -> bytes
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a FIFO that nobody writes to would wait for ever.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

LARGEST = 1 << 26  # bytes; the largest library of a program has less than 1 MiB


class NotOwn(OSError):
    """Another user owns a file or folder, or may write to it; or it is not of the kind that is expected."""


@contextmanager
def own_folder(folder: str | os.PathLike[str], make: bool = False) -> Iterator[int]:
    """Yield the descriptor of a folder that only this user can have put files into.

    The folders around it may be root's or this user's, and others may write to them only if they are sticky,
    as ``/tmp`` is. They may be reached through links, but the folder itself must not be a link. With
    ``make``, missing folders are made, with mode 0700 whatever the umask is.

    Raises NotOwn if somebody else may write there, OSError if the folder is missing or cannot be opened.
    """
    path = Path(os.path.abspath(folder))
    if path.is_symlink():
        raise NotOwn(f"{path} is a link: name the folder that it leads to")
    path = Path(os.path.realpath(path.parent)) / path.name
    descriptor = os.open("/", FOLDER)
    try:
        # The owner of / may do anything: root, or the user that stands for root in a user namespace.
        around = {0, os.geteuid(), os.fstat(descriptor).st_uid}
        for entered, name in zip(reversed(path.parents), path.parts[1:], strict=True):
            _check(os.fstat(descriptor), entered, around, sticky_will_do=True)
            inner = _enter(descriptor, name, make)
            os.close(descriptor)
            descriptor = inner
        _check(os.fstat(descriptor), path, {os.geteuid()})
        yield descriptor
    finally:
        os.close(descriptor)


def read_own_file(name: str, folder: int) -> bytes:
    """Return the content of a regular file in an open folder.

    Raises NotOwn if it is no regular file, or others may write to it; OSError if it cannot be read.
    """
    descriptor = os.open(name, FILE, dir_fd=folder)
    try:
        facts = os.fstat(descriptor)
        check_own_file(facts, name)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(facts.st_size)  # takes memory for so many bytes before it reads
    finally:
        os.close(descriptor)


def check_own_file(facts: os.stat_result, name: str) -> None:
    """Raise NotOwn unless a file is regular, not too large, and this user alone may write to it."""
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST:
        raise NotOwn(f"{name} is no regular file, or has more than {LARGEST} bytes")
    _check(facts, name, {os.geteuid()})


def _enter(folder: int, name: str, make: bool) -> int:
    with suppress(FileNotFoundError):
        return os.open(name, FOLDER, dir_fd=folder)
    if make:
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(name, 0o700, dir_fd=folder)
            os.chmod(name, 0o700, dir_fd=folder)
    return os.open(name, FOLDER, dir_fd=folder)


def _check(facts: os.stat_result, path: object, owners: set[int], sticky_will_do: bool = False) -> None:
    if facts.st_uid not in owners:
        raise NotOwn(f"{path} belongs to user {facts.st_uid}, and this is user {os.geteuid()}")
    if facts.st_mode & 0o022 and not (sticky_will_do and facts.st_mode & stat.S_ISVTX):
        raise NotOwn(f"others may write to {path}: chmod go-w {path}")
