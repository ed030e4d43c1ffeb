"""Check the inputs of one call, and the rows that it selects, before anything is sent.

inputs, batch, batch_s -> Selection of rows -> spans in a message, arrays in staging buffers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synk.exact.run_values import describe
from synk.run.arrays.data import Data
from synk.transport.memory.segments import StagingBuffers
from synk.values import messages
from synk.values.checks import checked_count, plain, why_refused
from synk.values.rows import SelectedRows, same_rows, select_common, select_each


class CallOptions(NamedTuple):
    """The options of a call, as `Function.__call__` takes them."""

    batch: Any = None
    batch_s: Any = None
    num_slices: Any = 1
    next_batch: Any = None

    def check(self, name: str, has_scattered: bool, has_sliceables: bool) -> None:
        """Raise if an option selects rows where the function ``name`` has no input or variable to slice."""
        for selected, keyword in ((self.batch, "batch"), (self.next_batch, "next_batch")):
            if selected is not None and not has_scattered:
                raise TypeError(f"{keyword} selects rows of scattered inputs; {name!r} has none")
        if self.batch_s is not None and not has_sliceables:
            raise TypeError(f"batch_s selects rows of sliceable_shareds; {name!r} has none")
        if checked_count("num_slices", self.num_slices) > 1 and not has_scattered and not has_sliceables:
            raise ValueError(f"num_slices={self.num_slices}, but {name!r} has nothing to slice")


class Selection(NamedTuple):
    """The rows that a call reads."""

    batch: SelectedRows | None  # the rows of scattered inputs for all ranks together
    shares: tuple[SelectedRows, ...] | None  # the rows of sliceable variables, by rank
    following: SelectedRows | None  # the rows of the next call, if it pays to gather them ahead


def as_input(variable: Any, value: Any) -> Any:
    """Return ``value``, which is no Data, as an array of the input's type; raise what `filtered` raises."""
    return filtered(variable, value, "input")


def filtered(variable: Any, value: Any, what: str) -> Any:
    """Return ``value``, which is no Data, as an array of the variable's type.

    Raises TypeError or ValueError if dtype, dimensions or static shape do not fit, or if the value is masked
    or sparse. The message names the variable as ``what``: "input", say.
    """
    if type(value) is not np.ndarray:  # which has no mask
        value = plain(value, f"{what} {describe(variable)}")
    try:
        return variable.type.filter(value, allow_downcast=None)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:  # of `__array__`, too
        name = f"{what} {describe(variable)}"
        reason = why_refused(value, variable.type.dtype, variable.type.shape, name)
        kind = ValueError if isinstance(error, ValueError) and reason is None else TypeError
        raise kind(reason or f"{name}: {error}") from None


def check_data(variable: Any, data: Data) -> None:
    """Raise TypeError if a Data does not fit an input."""
    if data.dtype != np.dtype(variable.dtype):
        raise TypeError(
            f"input {describe(variable)} has dtype {variable.dtype}, the Data {data.dtype}; "
            f"make them by synk.data(values, dtype={variable.dtype!r}), or declare the input as {data.dtype}"
        )
    if data.ndim != variable.ndim:
        raise TypeError(f"input {describe(variable)} has {variable.ndim} dimensions, the Data {data.ndim}")
    if not fits(data.shape, variable.type.shape):
        raise TypeError(f"input {describe(variable)} is {variable.type}, the Data has shape {data.shape}")


def fits(shape: Sequence[int], static: Sequence[int | None]) -> bool:
    """Return whether ``shape`` agrees with the static lengths of a type, in which None fits any length."""
    return all(known in (None, length) for length, known in zip(shape, static, strict=True))


def common_length(entries: Sequence[Any]) -> int | None:
    """Return the number of rows if all inputs are Data of one length and none is minibatch, else None."""
    lengths = {len(entry) if is_gathered(entry) else None for entry in entries}
    return lengths.pop() if len(lengths) == 1 else None


def select_batch(
    variables: Sequence[Any], entries: Sequence[Any], batch: Any, length: int | None = None
) -> SelectedRows:
    """Return the rows that ``batch`` selects from all scattered inputs; ``length`` is their `common_length`.

    Raises what `select_common` raises, and ValueError if a minibatch input has too few rows.
    """
    if length is not None:
        return select_common(batch, [length], [_called(variables[0], 0)])
    names = [_called(variable, position) for position, variable in enumerate(variables)]
    paired = [isinstance(entry, Data) and entry.minibatch for entry in entries]
    selecting = [position for position, pairs in enumerate(paired) if not pairs] or range(len(entries))
    rows = select_common(
        batch, [len(entries[position]) for position in selecting], [names[position] for position in selecting]
    )
    for name, entry, pairs in zip(names, entries, paired, strict=True):
        if pairs and (len(entry) < len(rows) or (batch is None and len(entry) > len(rows))):
            raise ValueError(f"minibatch input {name!r} has {len(entry)} rows for {len(rows)} selected rows")
    return rows


def select_following(
    variables: Sequence[Any], entries: Sequence[Any], next_batch: Any, in_place: bool
) -> SelectedRows | None:
    """Return the rows that ``next_batch`` selects, or None if ranks need not gather any of them ahead.

    Only Data are gathered ahead, and no minibatch Data: arrays and minibatch Data differ at each call. If
    ``in_place``, contiguous rows are not gathered either, since ranks read them in place. Raises what
    `select_common` raises.
    """
    gathered = [position for position, entry in enumerate(entries) if is_gathered(entry)]
    if not gathered:
        return None
    lengths = [len(entries[position]) for position in gathered]
    names = [_called(variables[position], position) for position in gathered]
    rows = select_common(next_batch, lengths, names, "next_batch")
    return None if rows.indices is None and in_place else rows


def is_gathered(entry: Any) -> bool:
    """Return whether ``batch`` selects rows of this input; other inputs have a row for each selected row."""
    return isinstance(entry, Data) and not entry.minibatch


def _called(variable: Any, position: int) -> str:
    return variable.name or f"input {position}"


def select_shares(
    variables: Sequence[Any], lengths: Sequence[Sequence[int]], batch_s: Any
) -> tuple[SelectedRows, ...]:
    """Return the rows that ``batch_s`` selects from all sliceable variables, by rank.

    ``lengths`` are the numbers of rows by variable, then by rank. Raises what `select_each` raises, and
    ValueError if ``batch_s`` does not select the same rows of every variable.
    """
    picked = [select_each(batch_s, of_variable) for of_variable in lengths]
    for other in picked[1:]:
        if not all(same_rows(one, two) for one, two in zip(picked[0], other, strict=True)):
            listing = ", ".join(
                f"{describe(variable)}: {list(of_variable)}"
                for variable, of_variable in zip(variables, lengths, strict=True)
            )
            raise ValueError(
                f"sliceable variables differ in rows on the ranks ({listing}); "
                "pass batch_s that selects the same rows of each"
            )
    return picked[0]


class IndexList:
    """Collects the index arrays of one call, which are sent to the ranks as one array."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int64]] = []
        self._total = 0

    def span(self, rows: SelectedRows) -> messages.RowSpan:
        """Return the span that stands for ``rows`` in a message; an index list in them is collected."""
        if rows.indices is None:
            return messages.RowSpan(rows.start, rows.stop, listed=False)
        self._arrays.append(rows.indices[rows.start : rows.stop])
        start, self._total = self._total, self._total + len(rows)
        return messages.RowSpan(start, self._total, listed=True)

    def stage(self, staging: StagingBuffers, key: tuple[Any, ...]) -> messages.ArrayRef | None:
        """Copy all index arrays into one staging buffer, and return a reference; None if there are none."""
        if not self._arrays:
            return None
        return staging.put(key, self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays))
