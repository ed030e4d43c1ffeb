"""A file in memory between two processes, which outlives either of them.

MemoryFile(name) -> fileno() in the other process -> MemoryFile(name, file)
"""

from __future__ import annotations

import fcntl
import os


class MemoryFile:
    """A file in memory, to whose end both processes write: a new one, or ``file`` of the other process."""

    def __init__(self, name: str, file: int | None = None):
        self._file = os.memfd_create(name) if file is None else file
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # both processes share the position in it

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        """Close the file in this process."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
