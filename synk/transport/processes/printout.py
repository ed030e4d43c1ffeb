"""Show what workers print where prints go to no descriptor: in the cells of a notebook, say.

A notebook's stream answers for the cell that ran at the fork, by a thread that a fork is without. So a worker
gets streams that append whole lines to a file in memory, and the master prints what is new there after every
command, by the streams that it has then.

    Printout (master) -> take_over (worker) -> lines -> deliver (master)
"""

from __future__ import annotations

import io
import mmap
import os
import sys
import threading
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from synk.transport.processes.memory_file import MemoryFile
from synk.transport.processes.stderr_log import writes_to

STREAMS = {"1": "stdout", "2": "stderr"}  # by how lines begin that go there
FREE_BYTES = 1 << 20  # of lines that were delivered are freed together; a multiple of the page


class Printout(MemoryFile):
    """The lines that all workers of a run print, in a new file or one that another process has made.

    ``is_used`` tells whether workers that are forked now print here.
    """

    def __init__(self, file: int | None = None):
        super().__init__("synk-printout", file)
        self._delivered = self._freed = 0  # bytes
        self._streams: list[_Lines] = []
        self.is_used = any(_goes_elsewhere(number, name) for number, name in STREAMS.items())

    # --- in the worker -----------------------------------------------------------------------------

    def take_over(self, rank: int) -> None:
        """Let the streams of this worker append to this file, unless they write to its own descriptors."""
        for number, name in STREAMS.items():
            if _goes_elsewhere(number, name):
                self._streams.append(_Lines(self._file, f"{number}[rank {rank}] "))
                setattr(sys, name, self._streams[-1])

    def finish(self) -> None:
        """End the lines that have begun, so that the master prints them."""
        for stream in self._streams:
            stream.finish()

    # --- in the master -----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Print the lines that workers have printed since the last call."""
        start, end = self._delivered, os.fstat(self._file).st_size
        if start < end:
            lines = os.pread(self._file, end - start, start)
            lines = lines[: lines.rfind(b"\n") + 1]  # a thread of a worker may be writing another
            self._delivered += len(lines)  # first, else an interrupt would have them printed again
            _print(lines.decode(errors="replace"))
            self._free()

    def _free(self) -> None:
        # Not by truncation: a thread of a worker may be printing.
        length = (self._delivered - self._freed) // FREE_BYTES * FREE_BYTES
        if length:
            with mmap.mmap(self._file, length, offset=self._freed) as delivered:
                delivered.madvise(mmap.MADV_REMOVE)
            self._freed += length

    def close(self) -> None:
        """Print the remaining lines, and close the file."""
        if self._file >= 0:
            self.deliver()
        super().close()


def _goes_elsewhere(number: str, name: str) -> bool:
    """Tell whether Python prints to something else than the process's own descriptor, such as a notebook."""
    stream = getattr(sys, name)
    return stream is not None and not writes_to(stream, int(number))


def _print(lines: str) -> None:
    for number, of_stream in groupby(lines.split("\n")[:-1], itemgetter(0)):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            getattr(sys, STREAMS[number]).write("".join(f"{line[1:]}\n" for line in of_stream))


class _Begun(threading.local):
    """The beginning of a line that a thread has not ended yet."""

    text = ""


class _Lines(io.TextIOBase):
    """A text stream that appends whole lines to a file, each after a prefix."""

    encoding = "utf-8"

    def __init__(self, file: int, prefix: str):
        self._file = file
        self._prefix = prefix
        self._begun = _Begun()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun.text = (self._begun.text + text).split("\n")
        if lines:
            whole = "".join(f"{self._prefix}{line}\n" for line in lines)
            with suppress(OSError):  # memory is short
                os.write(self._file, whole.encode(errors="replace"))
        return len(text)

    def finish(self) -> None:
        """End a line that has begun."""
        if self._begun.text:
            self.write("\n")
