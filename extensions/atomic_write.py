"""Replace a file as a whole: at every moment there is the old one or the new one, never a part.

Imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the body ends.

    The body writes to a temporary file beside it. When it raises, or the new file cannot be brought
    to disk, the temporary file is removed and the old file stays. A symbolic link stays a link.

    Parameters
    ----------
    path : path-like

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        From the file system. When only the folder could not be brought to disk, the new file is in
        place, but might not survive a power failure.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    # In the same folder: a rename across file systems is a copy, which can be cut short.
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.partial")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _bring_to_disk(folder)


def _bring_to_disk(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
