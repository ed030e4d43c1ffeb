"""Combine values that come one after another, of slices or of ranks, by one operation: pure arithmetic.

    values with their numbers of rows -> Accumulator -> PartialResult

The order never changes, so the same run gives the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synk.values.operations import UFUNCS, accumulating_dtype


class PartialResult(NamedTuple):
    """A result computed from some of the rows, and how many these are."""

    value: Any  # array, in the accumulating dtype
    weight: int  # rows, or 1 where nothing is scattered


def shapes_differ(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return the error message for two slices or ranks whose values of one result differ in shape.

    NumPy might broadcast one to the other without an error.
    """
    return (
        f'slices or ranks have shapes {one} and {other}; one value for each row takes "gather", '
        "other results need one shape whatever the rows, as .mean(axis=0) has"
    )


class Accumulator:
    """Combine values that come one at a time, keeping only the running result; mode None keeps the last one.

    An average is kept as the sum over all rows so far, and divided by their number at the end. For elements
    whose sum overflows, the running mean is taken instead, which is no larger than the values are.
    """

    def __init__(self, mode: str | None):
        self.mode = mode
        self.weight = 0
        self._values: list[Any] = []
        self._mean: Any = None  # the running mean, from the first overflow of the sum on
        self._owned = False  # whether the running value is a new array, which may be overwritten

    def add(self, value: Any, weight: int) -> None:
        """Combine one more value, computed from ``weight`` rows, with the running result.

        The first value is not copied.
        """
        if self.mode is None or not self._values:
            self._values = [value]
            self.weight = weight
        elif self.mode == "gather":
            self._values.append(value)
            self.weight += weight
        elif value.shape != self._values[0].shape:
            raise ValueError(shapes_differ(self._values[0].shape, value.shape))
        elif self.mode == "avg":
            self._average(value, weight)
        else:
            self._merge(value)
            self.weight += weight

    def _merge(self, value: Any) -> None:
        with np.errstate(all="ignore"):  # infinities and NaN are values, as in programs
            if not self._owned:
                self._values = [_widened(self._values[0], copy=True)]
                self._owned = True
            UFUNCS[str(self.mode)](self._values[0], _widened(value), out=self._values[0])

    def _average(self, value: Any, weight: int) -> None:
        before = self._values[0]
        try:
            with np.errstate(all="ignore", over="raise"):
                self._add_rows(value, weight)
        except FloatingPointError:
            with np.errstate(all="ignore"):
                if self._mean is None:
                    self._mean = before / before.dtype.type(self.weight) if self._owned else _widened(before)
                self._values[0] = before
                self._add_rows(value, weight)
        if self._mean is not None:
            with np.errstate(all="ignore"):
                self._mean = _mean_of_both(self._mean, self.weight, _widened(value), weight)
        self._owned = True
        self.weight += weight

    def _add_rows(self, value: Any, weight: int) -> None:
        addend = _times(_widened(value), weight)
        total = self._values[0] if self._owned else _times(_widened(self._values[0]), self.weight)
        # The sum is written to the addend, a new array, so that an overflow leaves the old total in place.
        room = addend if addend.shape == total.shape else total.copy()
        self._values[0] = np.add(total, addend, out=room)

    def partial(self) -> PartialResult | None:
        """Return the result so far, or None if nothing was added."""
        if not self._values:
            return None
        if self.mode == "gather":
            return PartialResult(joined(self._values), self.weight)
        value = self._values[0]
        if self._owned and self.mode == "avg":
            with np.errstate(all="ignore"):
                value = value / value.dtype.type(self.weight)
        if self._mean is not None:
            value = np.where(np.isfinite(value), value, self._mean)
        return PartialResult(value, self.weight)


def _widened(value: Any, copy: bool = False) -> Any:
    """Return a value in the dtype in which it is accumulated."""
    array = np.asarray(value)
    return array.astype(accumulating_dtype(array.dtype), copy=copy)


def _times(array: Any, weight: int) -> Any:
    # A plain mean of means would weigh the rows of short shards more.
    return np.asarray(array * array.dtype.type(weight))


def _mean_of_both(one: Any, n_one: int, other: Any, n_other: int) -> Any:
    """Return the mean over all rows of two means over ``n_one`` and ``n_other`` rows.

    No intermediate value is larger than the two means, so nothing overflows.
    """
    if np.iscomplexobj(one):
        mean = np.empty_like(one)
        mean.real = _mean_of_both(one.real, n_one, other.real, n_other)
        mean.imag = _mean_of_both(one.imag, n_one, other.imag, n_other)
        return mean
    share = one.dtype.type(n_other / (n_one + n_other))
    # Both shares are rounded, so their sum may be a little more than 1, and the mean beyond both values.
    return np.clip(one * (1 - share) + other * share, np.minimum(one, other), np.maximum(one, other))


def joined(values: list[Any]) -> Any:
    """Return the rows of all values in one array; a number is a row."""
    return np.concatenate([np.atleast_1d(value) for value in values])
