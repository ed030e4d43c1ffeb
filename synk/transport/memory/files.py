"""Find and reopen the file that an array is mapped from, so that every rank can map it.

    path -> as_memmap -> numpy.memmap -> reopened -> the file, and where in it the array begins

An array does not tell by which descriptor it was mapped, and its file may have been renamed or replaced
since. So each file that may be the right one is mapped, and taken if the kernel lists both mappings under one
file.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from io import FileIO
from typing import Any, NamedTuple

import numpy as np

MAPS = "/proc/self/maps"
DESCRIPTORS = "/proc/self/fd"


def is_in_file(value: Any) -> bool:
    """Return whether a value is the path of a file, or an array that is mapped from one."""
    # What is computed or copied from a memmap may still be called one, but has no mode.
    return isinstance(value, str | os.PathLike) or (isinstance(value, np.memmap) and value.mode is not None)


def file_label(filename: Any) -> str:
    """Return the name of a file for messages."""
    return "a file without a name" if filename is None else f"file {os.fspath(filename)!r}"


def as_memmap(value: Any) -> np.memmap[Any, Any]:
    """Return the memmap that ranks can read in place, of a path or a memmap; a .npy file is opened read-only.

    Raises OSError, TypeError or ValueError if the file cannot be read in place.
    """
    array = value if isinstance(value, np.memmap) else _load(value)
    where = file_label(array.filename)
    if array.mode == "c":
        raise ValueError(
            f"{where} was opened copy-on-write (mode 'c'), so other ranks would not see what is written; "
            "open it with mmap_mode='r' or 'r+'"
        )
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{where} holds {array.dtype}; ranks read booleans and numbers in place")
    if not array.dtype.isnative:
        raise TypeError(
            f"{where} holds {array.dtype.str}, whose bytes are in another order than this machine's; "
            f"store it as {array.dtype.newbyteorder('=').str}"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"the array in {where} is not in C order without gaps (shape {array.shape}, strides "
            f"{array.strides} bytes); select whole rows next to each other, store "
            "np.ascontiguousarray(values), or copy it to shared memory: synk.data(np.array(values))"
        )
    if not array.flags.aligned:
        raise ValueError(
            f"the array in {where} is not aligned; begin it at a multiple of {array.dtype.alignment} bytes"
        )
    return array


def _load(path: str | os.PathLike[str]) -> np.memmap[Any, Any]:
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:  # of the magic string, the header, the dtype, the length
        raise ValueError(
            f"{file_label(path)} cannot be read in place as .npy: {error}; store the array by np.save, or "
            "map other files by np.memmap"
        ) from None


def reopened(array: np.memmap[Any, Any]) -> tuple[FileIO, int]:
    """Open the file that an array is mapped from again; return it, and the byte at which the array begins.

    Raises ValueError if the file cannot be found, or is shorter by now than the array.
    """
    address = array.__array_interface__["data"][0]
    for path in _candidates(array.filename):
        file = _open(path, array.flags.writeable)
        if file is None:
            continue
        try:
            offset = _offset(file, address)
            if offset is not None:
                check_length(array.filename, os.fstat(file.fileno()).st_size, offset + array.nbytes)
                return file, offset
        except BaseException:
            file.close()
            raise
        file.close()
    raise ValueError(
        f"{file_label(array.filename)} is not there any more, or cannot be opened; load it again"
    )


def check_length(filename: Any, file_bytes: int, needed: int) -> None:
    """Raise ValueError if a file is too short: reading beyond its end would kill ranks by SIGBUS."""
    if file_bytes < needed:
        raise ValueError(
            f"{file_label(filename)} was cut: it has {file_bytes} bytes, and the rows end at byte {needed}; "
            "write it anew and load it again"
        )


class Mapping(NamedTuple):
    """A mapping of a file in this process: a line of `MAPS`."""

    start: int  # address
    stop: int  # address
    offset: int  # bytes of the file before the mapping
    file: tuple[str, ...]  # device, inode and path, which are the same for mappings of one file


def _mappings() -> Iterator[Mapping]:
    with open(MAPS, "rb") as maps:
        lines = os.fsdecode(maps.read()).split("\n")
    for line in filter(None, lines):
        span, _, offset, *file = line.split(None, 5)
        start, stop = span.split("-")
        yield Mapping(int(start, 16), int(stop, 16), int(offset, 16), tuple(file))


def _candidates(filename: Any) -> Iterator[str]:
    """Yield paths that may be the file: its name, then all open descriptors, since a memmap keeps one."""
    if filename is not None:
        yield os.fspath(filename)
    for number in os.listdir(DESCRIPTORS):
        yield f"{DESCRIPTORS}/{number}"


def _open(path: str, writable: bool) -> FileIO | None:
    try:
        # Opening a pipe would wait for somebody to write.
        regular = stat.S_ISREG(os.stat(path).st_mode)
        return FileIO(path, "r+" if writable else "r") if regular else None
    except OSError:  # it is gone, or not ours to open
        return None


def _offset(file: FileIO, address: int) -> int | None:
    """Return the byte of ``file`` that is mapped at an address, or None if another file is mapped there."""
    try:
        probe = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    except (OSError, ValueError):  # it is empty, or cannot be mapped
        return None
    with probe:
        there = np.ndarray((1,), np.uint8, buffer=probe).__array_interface__["data"][0]
        found = {
            at: mapping
            for mapping in _mappings()
            for at in (address, there)
            if mapping.start <= at < mapping.stop
        }
    if address not in found or there not in found or found[address].file != found[there].file:
        return None
    return found[address].offset + address - found[address].start
