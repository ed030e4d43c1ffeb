"""Combine the results of all ranks, in rank order: pure arithmetic.

    results of each rank's slices -> Accumulator -> combine -> results of the call

Each average carries its number of rows as its weight, so slices and ranks of any length give the average over
all rows, which is finite if all values are. The order never changes, so the same run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from synk.values.accumulator import Accumulator, joined
from synk.values.floating import STRICT
from synk.values.operations import UFUNCS

COMBINING = STRICT.copy()  # one thread at a time enters it, since calls are combined one after another


class Output(NamedTuple):
    """The way in which the results of all ranks are combined to one output of a function."""

    mode: str | None  # "avg", "sum", "prod", "min", "max", "gather"; None takes the first rank with a result
    dtype: Any  # of the combined value; None for the dtype that it has
    what: str  # the output's name in errors
    axis: int = 0  # of "gather": the axis of the rows in the output; the ranks' results have them on axis 0

    def with_rows_in_place(self, value: Any) -> Any:
        """Return a view of a gathered value, with the rows moved from axis 0 to ``axis``."""
        return np.moveaxis(value, 0, self.axis) if self.axis else value


def combine(outputs: Sequence[Output], of_ranks: Sequence[Any]) -> list[Any]:
    """Combine the `Results` of all ranks, in rank order; return the value of each output.

    A rank that had no rows has None instead of results. Raises ValueError if values of one output differ in
    shape.
    """
    present = of_ranks
    if None in of_ranks:
        present = [results for results in of_ranks if results is not None]
    try:
        # One call combines all outputs, since most are small: entering the context costs more than they do.
        return COMBINING.run(_combined, outputs, present)
    except FloatingPointError:
        return [_careful_total(output, k, present) for k, output in enumerate(outputs)]


def _combined(outputs: Sequence[Output], present: Sequence[Any]) -> list[Any]:
    """Return the combined value of each output, as `_careful_total` does but in fewer steps.

    Raises FloatingPointError if a sum overflows.
    """
    first, *others = present
    combined = []
    for k, output in enumerate(outputs):
        mode, total, weight = output.mode, first.values[k], first.weight
        if mode is None:
            combined.append(total)
            continue
        if mode == "gather" or total.dtype.char == "e":
            combined.append(_careful_total(output, k, present))
            continue
        if others and mode == "avg":
            # A plain mean of means would weigh the rows of short shards more.
            total = total * weight
        for results in others:
            value = results.values[k]
            if value.shape != total.shape:
                _careful_total(output, k, present)  # raises, and names the output
            if mode == "avg":
                total = total + value * results.weight
                weight += results.weight
            else:
                total = UFUNCS[mode](total, value)
        if others and mode == "avg":
            total = total / weight
        if type(total) is not np.ndarray or (output.dtype is not None and total.dtype != output.dtype):
            total = np.asarray(total, output.dtype)
        combined.append(total)
    return combined


def _careful_total(output: Output, k: int, present: Sequence[Any]) -> Any:
    """Return the combined value of output ``k``, by an `Accumulator`, whose averages do not overflow."""
    mode, dtype, what, _ = output
    total = Accumulator(mode)
    try:
        for results in present:
            total.add(results.values[k], results.weight)
        result = total.partial()
        assert result is not None, "some rank always has a result"
        value = joined([result.value]) if mode == "gather" else result.value
        value = output.with_rows_in_place(value)
    except ValueError as error:
        raise ValueError(f"{what} is not reduced by {mode!r}: {error}") from None
    return value if dtype is None or mode is None else cast(value, dtype)


def cast(value: Any, dtype: Any) -> Any:
    """Return a value as an array of ``dtype``; numbers too large for it become infinite without a warning."""
    if value.dtype == dtype:
        return np.asarray(value)
    with np.errstate(all="ignore"):
        return np.asarray(value, dtype=dtype)
