"""Decide which rows each rank reads, before any process is told.

Pure arithmetic on lengths: no data is touched and no message is sent, so every rule here is
tested without forking.

    batch, batch_s -> select, select_each -> SelectedRows -> split over ranks -> split over slices
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.values.checks import plain


@dataclass(slots=True)  # never changed, but not frozen: a frozen one takes three times as long to make
class SelectedRows:
    """Rows ``start:stop`` of an array or, with ``indices``, rows ``indices[start:stop]``."""

    start: int
    stop: int
    indices: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> SelectedRows:
        """Return the rows at positions ``start:stop`` of this selection."""
        return SelectedRows(self.start + start, self.start + stop, self.indices)

    def kept(self) -> SelectedRows:
        """Return the same rows with a copy of their indices, whose memory the next call may write over."""
        if self.indices is None:
            return self
        return SelectedRows(0, len(self), self.indices[self.start : self.stop].copy())

    def of(self, array: Any, room: Callable[..., Any] | None = None) -> Any:
        """Return these rows of ``array``: a view where they are contiguous, else a copy.

        ``room(shape, dtype)`` returns the array to copy rows to, or None for a new one. The rows are not
        checked again: `select` must have compared them with the length of ``array``.
        """
        if self.indices is None:
            return array[self.start : self.stop]
        listed = self.indices[self.start : self.stop]
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            return array[listed]  # `take` would copy all of it first
        if room is None:
            return array.take(listed, axis=0)
        # In any other mode NumPy copies to a buffer first, because it may find a bad index half-way.
        return array.take(listed, axis=0, out=room((listed.size, *array.shape[1:]), array.dtype), mode="clip")


@lru_cache(maxsize=256)
def split(n_rows: int, n_parts: int) -> tuple[tuple[int, int], ...]:
    """Split ``n_rows`` rows into contiguous parts, for ranks or slices, as ``np.array_split`` does.

    Returns ``(start, stop)`` of each part. They cover ``0:n_rows`` in order, without gap or overlap. Lengths
    differ by one row at most, and longer parts come first, so part 0 has rows if any part has.
    """
    short, n_longer = divmod(n_rows, n_parts)
    edges = [part * short + min(part, n_longer) for part in range(n_parts + 1)]
    return tuple(itertools.pairwise(edges))


def slices(n_rows: int, num_slices: int) -> tuple[tuple[int, int], ...]:
    """Split ``n_rows`` rows into ``num_slices`` parts as `split` does, and leave out the empty ones."""
    if num_slices == 1 and n_rows:
        return ((0, n_rows),)
    return tuple(part for part in split(n_rows, num_slices) if part[0] < part[1])


def select(batch: Any, length: int, argument: str = "batch", owner: str = "the inputs") -> SelectedRows:
    """Turn any form of ``batch`` into `SelectedRows` of an array of ``length`` rows.

    None selects all rows, and an int that number of rows from the start. A slice (step 1) is clipped as in
    NumPy. In a sequence of int, or a 1-D integer array, repeats and negative entries are as in NumPy.
    ``argument`` and ``owner`` name the selection and the array in errors.

    Raises IndexError if an int is negative or beyond ``length``, or an entry is out of range; TypeError if
    it is a boolean, a boolean mask, or not integers; ValueError if a slice has another step, or an array is
    not 1-D.
    """
    if batch is None:
        return SelectedRows(0, length)
    if isinstance(batch, slice):
        return _select_slice(batch, length, argument)
    if isinstance(batch, bool | np.bool_):
        raise TypeError(f"{argument}={batch} is a boolean; pass a number of rows, a slice or indices")
    if isinstance(batch, int | np.integer):
        if not 0 <= batch <= length:
            number = "a negative number of" if batch < 0 else "more than"
            raise IndexError(
                f"{argument}={batch} selects {number} the {length} rows of {owner}; pass a slice to clip"
            )
        return SelectedRows(0, int(batch))
    return _select_list(batch, length, argument, owner)


def _select_slice(batch: slice, length: int, argument: str) -> SelectedRows:
    if any(isinstance(end, bool | np.bool_) for end in (batch.start, batch.stop, batch.step)):
        raise TypeError(f"{argument}={batch} has an end that is a boolean; pass integers")
    if batch.step not in (None, 1):
        raise ValueError(f"{argument}={batch} has step {batch.step}; pass a list of indices instead")
    try:
        start, stop, _ = batch.indices(length)
    except TypeError:
        raise TypeError(f"{argument}={batch} has an end that is not an integer") from None
    return SelectedRows(start, max(start, stop))


def _select_list(batch: Any, length: int, argument: str, owner: str) -> SelectedRows:
    if type(batch) is not np.ndarray:  # a plain array has no mask, and needs no check
        batch = plain(batch, argument)
    try:
        indices = np.asarray(batch)
    except ValueError:
        raise ValueError(f"{argument} is ragged; pass a flat list of row indices") from None
    if indices.size == 0 and indices.ndim == 1 and indices.dtype != bool:
        indices = indices.astype(np.int64)  # np.asarray([]) is float64
    if indices.dtype == bool:
        raise TypeError(f"{argument} is a boolean mask; pass np.flatnonzero(mask) instead")
    if indices.dtype.kind not in "iu":
        raise TypeError(
            f"{argument} must be an int, a slice or integer row indices, got {_describe(batch, indices)}"
        )
    if indices.ndim != 1:
        raise ValueError(f"{argument} must be one-dimensional, got {indices.ndim} dimensions")
    if not indices.size:
        return SelectedRows(0, 0)
    wide = indices.dtype.kind == "u" and indices.dtype.itemsize == 8  # beyond int64 they would turn negative
    checked = indices.astype(np.uint64 if wide else np.int64)  # a copy: the caller may change theirs
    # Read as unsigned numbers, negative ones are large: one comparison finds both them and those too large.
    if np.maximum.reduce(checked.view(np.uint64)) >= length:
        if indices.min() < -length or indices.max() >= length:
            bad = indices[(indices < -length) | (indices >= length)][0]
            raise IndexError(f"{argument} holds index {bad}, out of range for the {length} rows of {owner}")
        checked[checked < 0] += length
    rows = checked.view(np.int64)
    return contiguous(rows) or SelectedRows(0, rows.size, rows)


def contiguous(indices: NDArray[np.int64]) -> SelectedRows | None:
    """Return row indices as rows ``start:stop`` if they follow each other in order, else None.

    Rows ``start:stop`` are read in place, without a copy.
    """
    first, last = int(indices[0]), int(indices[-1])
    # For most lists the first and last entry show that they do not; only then are all entries compared.
    if last - first != indices.size - 1 or not (indices[1:] - indices[:-1] == 1).all():
        return None
    return SelectedRows(first, last + 1)


def _describe(batch: Any, array: NDArray[Any]) -> str:
    if isinstance(batch, np.ndarray | list | tuple):
        return f"{type(batch).__name__} of dtype {array.dtype}"
    return f"{type(batch).__name__} {batch!r}"


def select_common(
    batch: Any, lengths: Sequence[int], names: Sequence[str], argument: str = "batch"
) -> SelectedRows:
    """Turn ``batch`` into one selection of rows for several arrays, which have these lengths and names.

    Raises ValueError if the lengths differ and ``batch`` would select different rows of each.
    """
    if len(set(lengths)) == 1:
        return select(batch, lengths[0], argument, owner=f"input {names[0]!r}")
    listing = ", ".join(f"{name!r}: {length}" for name, length in zip(names, lengths, strict=True))
    if batch is None:
        raise ValueError(f"scattered inputs differ in length ({listing}); pass batch to select rows")
    picked = [
        select(batch, length, argument, owner=f"input {name!r}")
        for name, length in zip(names, lengths, strict=True)
    ]
    if any(not same_rows(picked[0], other) for other in picked[1:]):
        raise ValueError(
            f"{argument}={batch!r} selects different rows of inputs of different lengths ({listing})"
        )
    return picked[0]


def same_rows(one: SelectedRows, other: SelectedRows) -> bool:
    """Tell whether two selections are of the same rows, in the same order."""
    if one.indices is None and other.indices is None:
        return (one.start, one.stop) == (other.start, other.stop) or len(one) == len(other) == 0
    return bool(np.array_equal(_numbers(one), _numbers(other)))


def _numbers(rows: SelectedRows) -> NDArray[np.int64]:
    """Return the row numbers of a selection as an array."""
    if rows.indices is None:
        return np.arange(rows.start, rows.stop)
    return rows.indices[rows.start : rows.stop]


def select_each(batch_s: Any, lengths: Sequence[int]) -> tuple[SelectedRows, ...]:
    """Turn any form of ``batch_s`` into the rows that each rank selects from its own shard.

    ``lengths`` has the number of rows of each rank's shard. ``batch_s`` is one selection for all ranks, in
    any form that `select` takes (a list of ints is one), or a list with a slice or a sequence for each rank.
    Raises the errors of `select`, naming the rank, and ValueError if the list has not one entry per rank.
    """
    if _is_one_per_rank(batch_s):
        if len(batch_s) != len(lengths):
            raise ValueError(f"batch_s has {len(batch_s)} selections for {len(lengths)} ranks")
        choices = list(batch_s)
    else:
        choices = [batch_s] * len(lengths)
    return tuple(
        select(choice, length, argument="batch_s", owner=f"the sliceable variables of rank {rank}")
        for rank, (choice, length) in enumerate(zip(choices, lengths, strict=True))
    )


def _is_one_per_rank(batch_s: Any) -> bool:
    if not isinstance(batch_s, list | tuple) or not batch_s:
        return False
    return all(isinstance(entry, slice | list | tuple | range | np.ndarray) for entry in batch_s) and not all(
        isinstance(entry, np.ndarray) and entry.ndim == 0 for entry in batch_s
    )
