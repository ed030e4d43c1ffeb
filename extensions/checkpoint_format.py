"""The bytes of a checkpoint: named arrays and states of random generators.

    magic, 8 bytes | version, uint32 | length of header, uint32 | header, JSON
    arrays, in header order, C-contiguous | SHA-256 of everything before, 32 bytes

Numbers are little-endian. Nothing is unpickled; what the header says is checked against the size of
the file before memory is asked for.

Imports NumPy and the public API's base of errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import synk

MAGIC = b"\x89synkcp\n"  # the first byte is no text, the last is lost when line ends are translated
VERSION = 1
PREFIX = struct.Struct("<8sII")
DIGEST_BYTES = hashlib.sha256().digest_size
HEADER_LIMIT = 2**24  # bytes
CHUNK = 2**20  # bytes


class CheckpointCorrupt(synk.SynkError, ValueError):
    """A file is no checkpoint, or not whole."""


class CheckpointVersion(synk.SynkError, ValueError):
    """A checkpoint is of a version that this one cannot read."""


class ArrayEntry(NamedTuple):
    """Where an array lies in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # byte

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape) * self.dtype.itemsize


class GeneratorEntry(NamedTuple):
    """The state of a random generator, as its bit generator gives and takes it."""

    state: dict[str, Any]


Entry = ArrayEntry | GeneratorEntry


def write(file: BinaryIO, values: Mapping[str, np.ndarray | np.random.Generator]) -> None:
    """Write values under their names.

    Raises
    ------
    ValueError
        The header, with all names and states, is larger than its limit.
    """
    fields = {name: _described(value) for name, value in values.items()}
    header = json.dumps(fields, default=_as_list).encode()
    if len(header) > HEADER_LIMIT:
        raise ValueError(f"names and states take {len(header)} bytes, more than {HEADER_LIMIT}; save fewer")
    digest = hashlib.sha256()
    for piece in (PREFIX.pack(MAGIC, VERSION, len(header)), header, *_array_bytes(values)):
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, np.random.Generator):
        return {"state": value.bit_generator.state}
    return {"dtype": value.dtype.str, "shape": value.shape}


def _as_list(array: Any) -> Any:
    """Turn the arrays in a random state into lists, which bit generators take as well."""
    return array.tolist()


def _array_bytes(values: Mapping[str, Any]) -> Iterator[Any]:
    return (_bytes(np.ascontiguousarray(value)) for value in values.values() if isinstance(value, np.ndarray))


def _bytes(array: np.ndarray) -> Any:
    """Return the memory of a C-contiguous array, as bytes."""
    return array.reshape(-1).view(np.uint8).data


def read_entries(file: BinaryIO) -> dict[str, Entry]:
    """Check that a file is a whole checkpoint and tell what is in it.

    Parameters
    ----------
    file : binary file
        Seekable.

    Returns
    -------
    dict of str to ArrayEntry or GeneratorEntry

    Raises
    ------
    CheckpointCorrupt
        A byte is wrong, missing or too many.
    CheckpointVersion
        The version is not ours.
    """
    size = file.seek(0, os.SEEK_END)
    header_length = _read_prefix(file, size)
    _check_digest(file, size)
    file.seek(PREFIX.size)
    entries = _parse(file.read(header_length), PREFIX.size + header_length)
    stops = [entry.stop for entry in entries.values() if isinstance(entry, ArrayEntry)]
    promised = stops[-1] if stops else file.tell()
    if promised != size - DIGEST_BYTES:
        raise CheckpointCorrupt(
            f"the arrays end at byte {promised}, the digest begins at {size - DIGEST_BYTES}"
        )
    return entries


def read_array(file: BinaryIO, entry: ArrayEntry) -> np.ndarray:
    """Read one array.

    Raises
    ------
    CheckpointCorrupt
        The file ends before it.
    """
    array = np.empty(entry.shape, entry.dtype)
    file.seek(entry.start)
    if file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise CheckpointCorrupt("the file was cut short while it was read; load it again")
    return array


def _read_prefix(file: BinaryIO, size: int) -> int:
    """Return the length of the header, in bytes."""
    if size < PREFIX.size + DIGEST_BYTES:
        raise CheckpointCorrupt(f"the file has {size} bytes, fewer than any checkpoint; load an older one")
    file.seek(0)
    magic, version, header_length = PREFIX.unpack(file.read(PREFIX.size))
    if magic != MAGIC:
        raise CheckpointCorrupt(f"the file begins with {magic!r}: it is not a checkpoint of synk")
    if version != VERSION:
        raise CheckpointVersion(
            f"the checkpoint has version {version}; load it with a synk that writes those"
        )
    if header_length > min(HEADER_LIMIT, size - PREFIX.size - DIGEST_BYTES):
        raise CheckpointCorrupt(f"a header of {header_length} bytes does not fit; load an older checkpoint")
    return header_length


def _check_digest(file: BinaryIO, size: int) -> None:
    digest = hashlib.sha256()
    file.seek(0)
    end = size - DIGEST_BYTES
    for start in range(0, end, CHUNK):
        digest.update(file.read(min(CHUNK, end - start)))
    if file.read(DIGEST_BYTES) != digest.digest():
        raise CheckpointCorrupt("the SHA-256 differs from that of what was saved; load an older checkpoint")


def _parse(header: bytes, start: int) -> dict[str, Entry]:
    """Turn a header into entries; arrays begin at byte `start`."""
    entries: dict[str, Entry] = {}
    try:
        for name, fields in json.loads(header).items():
            if "state" in fields:
                entries[name] = GeneratorEntry(dict(fields["state"]))
            else:
                entries[name] = array = _array_entry(fields, start)
                start = array.stop
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(f"the header is not one of a checkpoint: {error}") from error
    return entries


def _array_entry(fields: Mapping[str, Any], start: int) -> ArrayEntry:
    dtype, shape = np.dtype(fields["dtype"]), tuple(fields["shape"])
    # Of objects, the bytes would be addresses.
    if dtype.kind not in "biufc":
        raise ValueError(f"dtype {dtype} is not of numbers")
    if not all(isinstance(length, int) and length >= 0 for length in shape):
        raise ValueError(f"shape {shape} is not of lengths")
    return ArrayEntry(dtype, shape, start)
