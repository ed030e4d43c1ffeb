"""Replace a file as a whole, so that at every moment there is the old file or the new one, never a part.

    sweep -> new file, locked -> body writes -> disk -> rename

The lock (flock) tells a file that is being written from one whose writer was killed: it ends with the
process, and holds for processes of other containers, which number theirs by themselves.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new binary file that takes the place of `path` when the body ends.

    The body writes to a temporary file beside it, and may read there what it wrote. When it raises, or the
    new file cannot be brought to disk, the temporary file is removed and the old file stays. A symbolic
    link stays a link, and the new file has the permissions of the old one. Temporary files of writers that
    were killed are removed first.

    Raises FileExistsError if there is something else than a regular file: a folder, a pipe or a device; and
    OSError from the file system. When only the folder could not be brought to disk, the new file is in
    place, but might not survive a power failure.
    """
    target = os.path.realpath(path)
    mode = _mode_of(target)
    # In the same folder: a rename across file systems is a copy, which can be cut short.
    folder = os.path.dirname(target)
    _sweep(folder)
    with _new_file(folder, 0o666 if mode is None else 0o600) as (temporary, file):
        yield file
        file.flush()
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
        os.rename(temporary, target)  # before the lock is let go
    _bring_to_disk(folder)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Replace a file by ``content`` as JSON in UTF-8."""
    text = json.dumps(content, ensure_ascii=False)  # Perfetto refuses escapes such as "\u00e9"
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", errors="replace"))


def _mode_of(target: str) -> int | None:
    """Return the permissions of the file that exists; None if there is none."""
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise FileExistsError(
            errno.EEXIST, "no regular file, so it is not replaced; give another path", target
        )
    return mode & 0o777


@contextlib.contextmanager
def _new_file(folder: str, permissions: int) -> Iterator[tuple[str, BinaryIO]]:
    """Yield a new, locked temporary file, which no other writer removes; remove it if the body raises."""
    while True:
        temporary = os.path.join(folder, f".{secrets.token_hex(8)}.partial")
        try:  # before there is a file, as an interrupt may come at any moment
            with open(temporary, "x+b", opener=_opener(permissions)) as file:
                if _lock_new(file.fileno()):
                    yield temporary, file
                    return
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _opener(permissions: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags, permissions)


def _lock_new(descriptor: int) -> bool:
    """Lock a new file; return False if another writer has locked it first, and removes it as abandoned."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing is removed there
        return True
    return os.fstat(descriptor).st_nlink > 0


def _sweep(folder: str) -> None:
    """Remove temporary files whose writers have ended."""
    with contextlib.suppress(OSError):
        for name in filter(PARTIAL.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):  # its writer lives, or it is another user's
                _remove_dead(os.path.join(folder, name))


def _remove_dead(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)


def _bring_to_disk(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
