"""The bytes of a checkpoint: named arrays, states of random generators, and plain values.

    magic, 8 bytes | version, uint32 | length of header, uint32 | header, JSON
    arrays, in header order, C-contiguous | SHA-256 of everything before, 32 bytes

The header has an entry for each name: the dtype and shape of an array, and ``lengths`` if ranks had parts of
its rows; the ``state`` of a generator; a ``value``; or ``ranks``, a list with an entry for each rank. Version
1, which is read as well, had entries named ``"rank 1/name"`` instead of that. Numbers are little-endian.
Nothing is unpickled; what the header says is checked against the size of the file before memory is asked for.
Reading a file, even one made to do harm, takes bounded time and memory, and errors stay short.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import synk

MAGIC = b"\x89synkcp\n"  # the first byte is no text, the last is lost when line ends are translated
VERSION = 2
PREFIX = struct.Struct("<8sII")
DIGEST_BYTES = hashlib.sha256().digest_size
HEADER_LIMIT = 2**24  # bytes
ENTRIES_LIMIT = 2**16
CHUNK = 2**20  # bytes
NUMBERS = re.compile(r"[<>|][biufc][0-9]{1,2}")  # dtypes; of objects, the bytes would be addresses
DIMENSIONS_LIMIT = 64  # as of NumPy
SHOWN = 100  # characters of what a file says, in errors


class CheckpointCorrupt(synk.SynkError, ValueError):
    """A file is no checkpoint, or it is damaged."""


class CheckpointVersion(synk.SynkError, ValueError):
    """A checkpoint is of a version that this one cannot read."""


class Rows(NamedTuple):
    """The parts of an array whose rows are split over ranks; they are written as one array."""

    parts: tuple[np.ndarray, ...]


class OfRanks(NamedTuple):
    """The values of one variable, an array or a random generator, by rank."""

    values: tuple[Any, ...]


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


class RowsEntry(NamedTuple):
    """The place of an array in the file, and how many of its rows each rank had."""

    array: ArrayEntry
    lengths: tuple[int, ...]


class OfRanksEntry(NamedTuple):
    """An entry for each rank."""

    entries: tuple[Any, ...]  # ArrayEntry or GeneratorEntry


Entry = ArrayEntry | GeneratorEntry | ValueEntry | RowsEntry | OfRanksEntry


def shortened(text: Any, length: int = SHOWN) -> str:
    """Return text from a file, cut to a length that fits into an error's message."""
    said = str(text)
    return said if len(said) <= length else f"{said[:length]}... ({len(said)} characters)"


def write(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write arrays, random generators, those of ranks, and plain values under their names.

    The caller makes sure that nobody changes them meanwhile.

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
    arrays = [_bytes(np.ascontiguousarray(one)) for value in values.values() for one in arrays_of(value)]
    for piece in (PREFIX.pack(MAGIC, VERSION, len(header)), header, *arrays):
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in a value that is to be written, in order."""
    for one in value if isinstance(value, Rows | OfRanks) else ():
        for part in one:
            yield from arrays_of(part)
    if isinstance(value, np.ndarray):
        yield value


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, OfRanks):
        return {"ranks": [_described(one) for one in value.values]}
    if isinstance(value, Rows):
        lengths = [len(part) for part in value.parts]
        first = value.parts[0]
        return {"dtype": first.dtype.str, "shape": (sum(lengths), *first.shape[1:]), "lengths": lengths}
    if isinstance(value, np.random.Generator):
        return {"state": value.bit_generator.state}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": value.shape}
    return {"value": value}


def _bytes(array: np.ndarray) -> Any:
    """Return the memory of a C-contiguous array, as bytes."""
    return array.reshape(-1).view(np.uint8).data


def read_entries(file: BinaryIO, most: float = math.inf, asked: Collection[str] = ()) -> dict[str, Entry]:
    """Check that a seekable file is a whole checkpoint and return its entries by name.

    In version 1, a name in ``asked`` is a variable's, even if it looks like that of a rank's value. If the
    arrays have more than ``most`` bytes, the digest is not checked, since that might take very long for a
    file that does not fit the variables anyway; if it fits, the caller runs `check_digest`. Raise
    CheckpointCorrupt if a byte is wrong, missing or too many, and CheckpointVersion for an unknown version.
    """
    size = file.seek(0, os.SEEK_END)
    version, header_length = _read_prefix(file, size)
    start = PREFIX.size + header_length
    if size - DIGEST_BYTES <= most + HEADER_LIMIT:  # a damaged prefix may tell a wrong start
        check_digest(file)
    file.seek(PREFIX.size)
    entries, promised = _parse(file.read(header_length), start)
    if promised != size - DIGEST_BYTES:
        raise CheckpointCorrupt(
            f"the arrays end at byte {shortened(promised)}, the digest begins at {size - DIGEST_BYTES}"
        )
    return _by_rank(entries, asked) if version == 1 else entries


def read_array(file: BinaryIO, entry: ArrayEntry) -> np.ndarray:
    """Read one array; `CheckpointCorrupt` if the file ends before it."""
    array = np.empty(entry.shape, entry.dtype)
    file.seek(entry.start)
    if file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise CheckpointCorrupt("the file was cut short while it was read; load it again")
    return array


def _read_prefix(file: BinaryIO, size: int) -> tuple[int, int]:
    """Return the version, and the length of the header, in bytes."""
    if size < PREFIX.size + DIGEST_BYTES:
        raise CheckpointCorrupt(f"the file has {size} bytes, fewer than any checkpoint; load an older one")
    file.seek(0)
    magic, version, header_length = PREFIX.unpack(file.read(PREFIX.size))
    if magic != MAGIC:
        raise CheckpointCorrupt(f"the file begins with {magic!r}: it is not a checkpoint of synk")
    if version not in (1, VERSION):
        raise CheckpointVersion(
            f"the checkpoint has version {version}; load it with a synk that writes those"
        )
    if header_length > min(HEADER_LIMIT, size - PREFIX.size - DIGEST_BYTES):
        raise CheckpointCorrupt(f"a header of {header_length} bytes does not fit; load an older checkpoint")
    return version, header_length


def check_digest(file: BinaryIO, longer_than: float = -math.inf) -> None:
    """Raise CheckpointCorrupt if a file differs from what was saved.

    A file of at most ``longer_than`` bytes of arrays is not read again: `read_entries` has checked it.
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


def _parse(header: bytes, start: int) -> tuple[dict[str, Entry], int]:
    """Turn a header into entries; arrays begin at byte `start`. Return the byte where they end, too."""
    entries: dict[str, Entry] = {}
    try:
        described = json.loads(header)
        if len(described) > ENTRIES_LIMIT:
            raise ValueError(f"{len(described)} names are more than {ENTRIES_LIMIT}")
        for name, fields in described.items():
            entries[name], start = _entry(fields, start)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(
            f"the header is not one of a checkpoint: {shortened(error, 3 * SHOWN)}"
        ) from None
    return entries, start


def _entry(fields: Any, start: int) -> tuple[Entry, int]:
    """Return an entry, and the byte where its arrays end."""
    if "state" in fields:
        return _generator_entry(fields["state"]), start
    if "value" in fields:
        return ValueEntry(fields["value"]), start
    if "ranks" in fields:
        return _of_ranks_entry(fields["ranks"], start)
    array = _array_entry(fields, start)
    return (_rows_entry(array, fields["lengths"]) if "lengths" in fields else array), array.stop


def _of_ranks_entry(ranks: Any, start: int) -> tuple[OfRanksEntry, int]:
    if not isinstance(ranks, list) or not 0 < len(ranks) <= ENTRIES_LIMIT:
        raise ValueError(f"ranks {shortened(ranks)} is no list of entries")
    entries = []
    for fields in ranks:
        entry, start = _entry(fields, start) if "ranks" not in fields else (None, start)
        entries.append(entry)
    if {type(entry) for entry in entries} not in ({ArrayEntry}, {GeneratorEntry}):
        raise ValueError("ranks have something else than arrays, or generators")
    return OfRanksEntry(tuple(entries)), start


def _rows_entry(array: ArrayEntry, lengths: Any) -> RowsEntry:
    is_list = (
        isinstance(lengths, list) and 0 < len(lengths) <= ENTRIES_LIMIT and all(map(_is_length, lengths))
    )
    if not is_list or not array.shape or sum(lengths) != array.shape[0]:
        raise ValueError(f"lengths {shortened(lengths)} are not those of parts of shape {array.shape}")
    return RowsEntry(array, tuple(lengths))


def _by_rank(entries: Mapping[str, Entry], asked: Collection[str]) -> dict[str, Entry]:
    """Return the entries of version 1, with those named ``"rank 1/name"`` beside that of rank 0."""
    found = dict(entries)
    for name, first in entries.items():
        of_ranks, place = [first], f"rank 1/{name}"
        while place not in asked and type(entries.get(place)) is type(first) is not ValueEntry:
            of_ranks.append(found.pop(place))
            place = f"rank {len(of_ranks)}/{name}"
        if len(of_ranks) > 1:
            found[name] = OfRanksEntry(tuple(of_ranks))
    return found


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
