"""The table of shared-memory segments, the same in every rank: the master makes them, workers attach them.

SegmentTable.allocate, map_file -> Attach and a descriptor to every worker -> SegmentTable.attach there
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from typing import Any

from numpy.typing import NDArray

from synk.transport.memory.shm import Segment
from synk.values import messages
from synk.values.errors import SegmentLost

ALIGNMENT = 64  # bytes: arrays in one segment start on cache lines
END_BYTES = 1 << 16  # of a file, that are compared
ON_DISK = "on disk"  # instead of a stamp: every machine reads the file itself
GROWTH = 1.25  # staging buffers are made larger than asked, so that few calls make a new one


class SegmentTable:
    """The segments of a run by number; every rank uses the same numbers.

    On the master, ``post(message, descriptor)`` sends a message to all workers at once, and
    ``release(message)`` when no command is running. If ``attachable``, segments keep their descriptors, for
    workers that are started later and inherit no mappings. Numbers count from ``first``.
    """

    def __init__(
        self,
        post: Callable[..., None] | None = None,
        release: Callable[[Any], None] | None = None,
        attachable: bool = False,
        first: int = 1,
    ):
        self._post = post
        self._release = release
        self._attachable = attachable
        self._segments: dict[int, Segment] = {}
        self._stamps: dict[int, Callable[[], Any]] = {}
        self._files: dict[int, messages.File | None] = {}
        self._lost: set[int] = set()
        self._numbers = itertools.count(first)  # threads may allocate at the same time
        self.before_drop: Callable[[], None] = lambda: None  # called before a drop, to free views

    def allocate(self, nbytes: int) -> int:
        """Create a segment, attach it in every worker, and return its number.

        Raises SharedMemoryFull if there is no room; nothing has changed then.
        """
        assert self._post is not None, "only the master allocates"
        number = self._hand_out(Segment.create(nbytes))
        if not self._attachable:
            self._segments[number].seal()
        return number

    def map_file(self, file: FileIO, path: str, nbytes: int, offset: int, writable: bool) -> int:
        """Map a part of a file as a segment in every rank; return the segment's number.

        The file is closed with the segment, or if OSError is raised because it cannot be mapped. Other
        machines open ``path``.
        """
        try:
            segment = Segment(file, nbytes, offset, writable)
        except BaseException:
            file.close()
            raise
        # Not sealed: the master asks again and again how long the file is.
        return self._hand_out(segment, described(file, path))

    def _hand_out(self, segment: Segment, file: messages.File | None = None) -> int:
        assert self._post is not None, "only the master hands out"
        number = next(self._numbers)
        self._segments[number] = segment
        self._files[number] = file
        message = self._as_message(number)
        try:
            self._post(message, segment.descriptor)
        except BaseException:
            self.drop(number)
            raise
        return number

    def make(self, message: messages.Attach) -> None:
        """Make a segment like one on the master's machine, under its number, and attach it in every worker.

        Raises SharedMemoryFull if there is no room.
        """
        assert self._post is not None, "only leaders of machines make segments"
        segment = self._segments[message.segment] = remade(message)
        self._post(message, segment.descriptor)
        segment.seal()

    def hold(self, segments: Mapping[int, Segment]) -> None:
        """Enter segments that are already mapped in this process and in its workers."""
        self._segments.update(segments)
        for segment in segments.values():
            segment.seal()  # descriptors of files are the master's

    def as_messages(self) -> list[messages.Attach]:
        """Return a message for each segment, by which another machine makes one like it."""
        return [self._as_message(number) for number in self._segments]

    def _as_message(self, number: int) -> messages.Attach:
        segment = self._segments[number]
        return messages.Attach(
            number, segment.nbytes, segment.offset, segment.writable, self._files.get(number)
        )

    def mapped(self) -> dict[int, Segment]:
        """Return the segments by number."""
        return dict(self._segments)

    def attach(self, message: messages.Attach, descriptor: int | None) -> Segment:
        """Attach, in a worker, a segment that the master has allocated.

        Raises OSError if no descriptor came with the message, because this process can open no more files.
        """
        if descriptor is None:
            self._lost.add(message.segment)
            raise _lost()
        segment = Segment.attach(descriptor, message.nbytes, message.offset, message.writable)
        self._segments[message.segment] = segment
        return segment

    def vouch(self, number: int, stamp: Callable[[], Any]) -> None:
        """Register the function by which a segment's owner tells whether it was written to; see `stamp`."""
        self._stamps[number] = stamp

    def stamp(self, number: int) -> Any:
        """Return a value that changes with each write to a segment; None if writes are not noticed."""
        if self._files.get(number) is not None:
            return ON_DISK
        stamp = self._stamps.get(number)
        return None if stamp is None else stamp()

    def release(self, number: int) -> None:
        """Drop a segment in every rank; safe in finalizers, at any moment."""
        assert self._release is not None, "only the master releases"
        self.drop(number)
        self._release(messages.Detach(number))

    def drop(self, number: int) -> None:
        """Drop a segment in this rank; the memory is freed when every rank has dropped it."""
        self.before_drop()
        self._lost.discard(number)
        self._stamps.pop(number, None)
        self._files.pop(number, None)
        segment = self._segments.pop(number, None)
        if segment is not None:
            segment.close()

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def array(self, ref: messages.ArrayRef) -> NDArray[Any]:
        """Return the array in a segment that a reference in a message stands for."""
        if ref.segment in self._lost:
            raise _lost()
        return self._segments[ref.segment].array(ref.dtype, ref.shape, ref.offset)

    def close(self) -> None:
        """Drop all segments in this rank."""
        for number in list(self._segments):
            self.drop(number)


def remade(message: messages.Attach) -> Segment:
    """Return a segment like one on the master's machine: new memory, or the same part of this machine's file.

    Raises OSError if the file is not on this machine, ValueError if it differs from the master's.
    """
    if message.file is None:
        return Segment.create(message.nbytes)
    path = message.file.path
    file = FileIO(path, "r+" if message.writable else "r")
    try:
        here, there = described(file, path), message.file
        if here != there:
            raise ValueError(
                f"file {path!r} on {socket.gethostname()} is not that of the master's machine: {here.nbytes} "
                f"bytes here, {there.nbytes} there, or other contents; copy it anew"
            )
        return Segment(file, message.nbytes, message.offset, message.writable)
    except BaseException:
        file.close()
        raise


def described(file: FileIO, path: str) -> messages.File:
    """Return the length of a file and a digest of both its ends, by which machines compare their files."""
    length = os.fstat(file.fileno()).st_size
    ends = [os.pread(file.fileno(), END_BYTES, at) for at in (0, max(0, length - END_BYTES))]
    return messages.File(path, length, hashlib.blake2b(b"".join(ends), digest_size=16).digest())


def aligned(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lost() -> SegmentLost:
    return SegmentLost(
        errno.EMFILE,
        "this rank had no file descriptor left to attach a segment of shared memory; raise the limit "
        "(ulimit -n), and make Data anew",
    )


class StagingBuffers:
    """Reused buffers through which the master hands arrays to the workers.

    ``on_drop`` is called with the number of each segment before it is freed.
    """

    def __init__(self, segments: SegmentTable, on_drop: Callable[[int], None] = lambda number: None):
        self._segments = segments
        self._on_drop = on_drop
        self.owners: dict[Any, dict[tuple[Any, ...], int]] = {}  # numbers of segments by owner, then by key

    def put(self, key: tuple[Any, ...], array: NDArray[Any]) -> messages.ArrayRef:
        """Copy ``array`` into the buffer called ``key``, which grows if need be; ``key[0]`` is its owner."""
        return self.put_all(key, [array])[0]

    def put_all(self, key: tuple[Any, ...], arrays: Sequence[NDArray[Any]]) -> list[messages.ArrayRef]:
        """Copy one or more arrays into one buffer, as `put` does; return where each is."""
        starts = list(itertools.accumulate([aligned(array.nbytes) for array in arrays[:-1]], initial=0))
        number = self._buffer(key, starts[-1] + arrays[-1].nbytes)
        places = zip(arrays, starts, strict=True)
        refs = [messages.ArrayRef(number, array.dtype.str, array.shape, start) for array, start in places]
        for ref, array in zip(refs, arrays, strict=True):
            self._segments.array(ref)[...] = array
        return refs

    def _buffer(self, key: tuple[Any, ...], nbytes: int) -> int:
        """Return the number of the segment called ``key``; make a larger one if it is too small."""
        owned = self.owners.setdefault(key[0], {})
        number = owned.get(key)
        if number is None or self._segments[number].nbytes < nbytes:
            self.drop(key)
            number = owned[key] = self._segments.allocate(nbytes if number is None else int(GROWTH * nbytes))
        return number

    def drop(self, *keys: tuple[Any, ...]) -> None:
        """Free the buffers called ``keys``; keys without a buffer are ignored."""
        for key in keys:
            number = self.owners.get(key[0], {}).pop(key, None)
            if number is not None:
                self._release(number)

    def drop_all(self) -> None:
        """Free all buffers."""
        for owner in list(self.owners):
            self.drop_owned_by(owner)

    def drop_owned_by(self, owner: Any) -> None:
        """Free all buffers whose key starts with ``owner``."""
        for number in self.owners.pop(owner, {}).values():
            self._release(number)

    def _release(self, number: int) -> None:
        self._on_drop(number)
        self._segments.release(number)
