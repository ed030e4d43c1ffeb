"""The bytes of a checkpoint: named arrays, states of random generators, and plain values.

    magic, 8 bytes | version, uint32 | length of header, uint32 | header, JSON
    arrays, in header order, C-contiguous | SHA-256 of everything before, 32 bytes

Numbers are little-endian. Nothing is unpickled; what the header says is checked against the size of
the file before memory is asked for. Reading a file, even one made to do harm, takes bounded time and memory,
and errors stay short.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import synk

MAGIC = b"\x89synkcp\n"  # the first byte is no text, the last is lost when line ends are translated
VERSION = 1
PREFIX = struct.Struct("<8sII")
DIGEST_BYTES = hashlib.sha256().digest_size
HEADER_LIMIT = 2**24  # bytes
ENTRIES_LIMIT = 2**16
CHUNK = 2**20  # bytes
NUMBERS = re.compile(r"[<>|][biufc][0-9]{1,2}")  # dtypes; of objects, the bytes would be addresses
DIMENSIONS_LIMIT = 64  # as of NumPy
SHOWN = 100  # characters of what a file says, in errors


class CheckpointCorrupt(synk.SynkError, ValueError):
    """A file is no checkpoint, or not whole."""


class CheckpointVersion(synk.SynkError, ValueError):
    """A checkpoint is of a version that this one cannot read."""


class ArrayEntry(NamedTuple):
    """The place of an array in the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int  # byte

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class GeneratorEntry(NamedTuple):
    """The state of a random generator, as its bit generator gives and takes it."""

    state: dict[str, Any]


class ValueEntry(NamedTuple):
    """A number, a string, None, or lists and dicts of those."""

    value: Any


Entry = ArrayEntry | GeneratorEntry | ValueEntry


def shortened(text: Any, length: int = SHOWN) -> str:
    """Return text that a file made up as short as errors should be."""
    said = str(text)
    return said if len(said) <= length else f"{said[:length]}... ({len(said)} characters)"


def write(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write arrays, random generators and plain values, which nobody changes meanwhile, under their names.

    ValueError if there are too many, or the header, with all names and states, is larger than its limit.
    """
    if len(values) > ENTRIES_LIMIT:
        raise ValueError(f"{len(values)} names are more than {ENTRIES_LIMIT}; save fewer, larger arrays")
    fields = {name: _described(value) for name, value in values.items()}
    # Arrays in a random state become lists, which bit generators take as well.
    header = json.dumps(fields, default=np.ndarray.tolist).encode()
    if len(header) > HEADER_LIMIT:
        raise ValueError(f"names and states take {len(header)} bytes, more than {HEADER_LIMIT}; save fewer")
    digest = hashlib.sha256()
    arrays = [_bytes(np.ascontiguousarray(one)) for one in values.values() if isinstance(one, np.ndarray)]
    for piece in (PREFIX.pack(MAGIC, VERSION, len(header)), header, *arrays):
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, np.random.Generator):
        return {"state": value.bit_generator.state}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": value.shape}
    return {"value": value}


def _bytes(array: np.ndarray) -> Any:
    """Return the memory of a C-contiguous array, as bytes."""
    return array.reshape(-1).view(np.uint8).data


def read_entries(file: BinaryIO, most: float = math.inf) -> dict[str, Entry]:
    """Check that a seekable file is a whole checkpoint and return its entries by name.

    Arrays of ``most`` bytes are of use. The digest of a file with more is not looked at, which may take for
    ever: whether it is damaged or not, it does not fit. Raises CheckpointCorrupt if a byte is wrong,
    missing or too many, and CheckpointVersion if the version is not ours.
    """
    size = file.seek(0, os.SEEK_END)
    header_length = _read_prefix(file, size)
    start = PREFIX.size + header_length
    if size - DIGEST_BYTES <= most + HEADER_LIMIT:  # a damaged prefix may tell a wrong start
        check_digest(file)
    file.seek(PREFIX.size)
    entries = _parse(file.read(header_length), start)
    stops = [entry.stop for entry in entries.values() if isinstance(entry, ArrayEntry)]
    promised = stops[-1] if stops else start
    if promised != size - DIGEST_BYTES:
        raise CheckpointCorrupt(
            f"the arrays end at byte {shortened(promised)}, the digest begins at {size - DIGEST_BYTES}"
        )
    return entries


def read_array(file: BinaryIO, entry: ArrayEntry) -> np.ndarray:
    """Read one array; `CheckpointCorrupt` if the file ends before it."""
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


def check_digest(file: BinaryIO, longer_than: float = -math.inf) -> None:
    """Raise CheckpointCorrupt if a file differs from what was saved.

    One of no more arrays than `read_entries` was told is not looked at again.
    """
    end = file.seek(0, os.SEEK_END) - DIGEST_BYTES
    if end <= longer_than + HEADER_LIMIT:
        return
    digest = hashlib.sha256()
    file.seek(0)
    for start in range(0, end, CHUNK):
        digest.update(file.read(min(CHUNK, end - start)))
    if file.read(DIGEST_BYTES) != digest.digest():
        raise CheckpointCorrupt("the SHA-256 differs from that of what was saved; load an older checkpoint")


def _parse(header: bytes, start: int) -> dict[str, Entry]:
    """Turn a header into entries; arrays begin at byte `start`."""
    entries: dict[str, Entry] = {}
    try:
        described = json.loads(header)
        if len(described) > ENTRIES_LIMIT:
            raise ValueError(f"{len(described)} names are more than {ENTRIES_LIMIT}")
        for name, fields in described.items():
            if "state" in fields:
                entries[name] = _generator_entry(fields["state"])
            elif "value" in fields:
                entries[name] = ValueEntry(fields["value"])
            else:
                entries[name] = array = _array_entry(fields, start)
                start = array.stop
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"the header is not one of a checkpoint: {shortened(error, 3 * SHOWN)}"
        ) from None
    return entries


def _generator_entry(state: Any) -> GeneratorEntry:
    if not isinstance(state, dict) or not isinstance(state.get("bit_generator"), str):
        raise ValueError(f"{shortened(state)} is not the state of a generator")
    return GeneratorEntry(state)


def _array_entry(fields: Mapping[str, Any], start: int) -> ArrayEntry:
    if not isinstance(fields["dtype"], str) or not NUMBERS.fullmatch(fields["dtype"]):
        raise ValueError(f"dtype {shortened(fields['dtype'])} is not of numbers")
    dtype, shape = np.dtype(fields["dtype"]), fields["shape"]
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_LIMIT or not all(map(_is_length, shape)):
        raise ValueError(f"shape {shortened(shape)} is not of lengths")
    return ArrayEntry(dtype, tuple(shape), start)


def _is_length(length: Any) -> bool:
    return type(length) is int and 0 <= length < 2**63
