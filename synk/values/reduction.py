"""Combine the results of several slices and ranks: pure arithmetic, in a fixed order.

    results of one rank's slices -> Accumulator -> PartialResult
    results of all ranks, in rank order -> combine -> results of the call

Each average carries its number of rows as its weight, so slices and ranks of any length give the average over
all rows, which is finite if all values are. The order never changes, so the same run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from synk.values.floating import STRICT

OPERATIONS = ("avg", "sum", "prod", "min", "max")
MODES = (*OPERATIONS, "gather", None)
IGNORED_PREFIX = "c_"  # in scripts for Synkhronos it asks for the host path; here it is accepted and ignored
COMBINING = STRICT.copy()  # one thread at a time enters it, since calls are combined one after another

UFUNCS: dict[str, np.ufunc] = {
    "avg": np.add,
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class PartialResult(NamedTuple):
    """A result computed from some of the rows, and how many these are."""

    value: Any  # array, in the accumulating dtype
    weight: int  # rows, or 1 where nothing is scattered


def check_operation(op: Any, dtype: str, what: str) -> str:
    """Return ``op`` if it can reduce arrays of ``dtype``; errors call the reduced value ``what``.

    Raises ValueError if ``op`` is unknown, and TypeError if it has no meaning for ``dtype``: "avg" of
    integers, "avg" or "sum" of booleans, "min" or "max" of complex numbers.
    """
    if op not in OPERATIONS:
        raise ValueError(f"{op!r} is not a reduce operation; use one of {', '.join(OPERATIONS)}")
    kind = np.dtype(dtype).kind
    if kind == "b" and op in ("avg", "sum"):
        raise TypeError(f'{what} is boolean, which has no "{op}"; cast it, or use "min", "max" or "gather"')
    if kind in "iu" and op == "avg":
        raise TypeError(
            f'{what} has dtype {dtype}, which has no "avg"; cast it to float, or name another operation'
        )
    if kind == "c" and op in ("min", "max"):
        raise TypeError(f'{what} is complex, which has no "{op}"')
    return op


def check_mode(mode: Any, dtype: str | None, what: str) -> str | None:
    """Return the mode of an output or update, one of `MODES`, without the prefix "c_", which is ignored.

    ``dtype`` is None if the output or update is not an array; then None is the only mode it can have.
    ``what`` names it in errors, which are those of `check_operation`.
    """
    plain = mode.removeprefix(IGNORED_PREFIX) if isinstance(mode, str) else mode
    if plain is None:
        return None
    if plain not in MODES:
        names = ", ".join(repr(name) for name in MODES)
        raise ValueError(f"{mode!r} is not a reduce operation of {what}; use one of {names}")
    if dtype is None:
        raise TypeError(f"{what} is not an array, so it cannot be reduced by {mode!r}; use None")
    return plain if plain == "gather" else check_operation(plain, dtype, what)


def accumulating_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are accumulated: float32 for float16, else the same."""
    return np.dtype("float32") if np.dtype(dtype) == np.float16 else np.dtype(dtype)


def recompute_overflows(terms: Sequence[Any], average: Any) -> None:
    """Compute again, in place, elements of an average whose sum has overflowed though all terms are finite.

    ``average`` holds ``sum(terms) / len(terms)``, in a floating or complex dtype.
    """
    real = average.real.dtype  # the real and the imaginary part of a complex number overflow by themselves
    terms, average = [term.astype(average.dtype, copy=False).view(real) for term in terms], average.view(real)
    overflowed = ~np.isfinite(average)
    for term in terms:
        overflowed &= np.isfinite(term)
    if not overflowed.any():
        return
    # Scaling by a power of two loses no bits of large numbers; those of small ones do not count beside them.
    scale = real.type(1 << (len(terms) - 1).bit_length())
    total = terms[0][overflowed] / scale
    for term in terms[1:]:
        total += term[overflowed] / scale
    largest = np.finfo(real).max
    average[overflowed] = np.clip(total / real.type(len(terms)) * scale, -largest, largest)


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
            return PartialResult(_joined(self._values), self.weight)
        value = self._values[0]
        if self._owned and self.mode == "avg":
            with np.errstate(all="ignore"):
                value = value / value.dtype.type(self.weight)
        if self._mean is not None:
            value = np.where(np.isfinite(value), value, self._mean)
        return PartialResult(value, self.weight)


def _widened(value: Any, copy: bool = False) -> Any:
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


def _joined(values: list[Any]) -> Any:
    return np.concatenate([np.atleast_1d(value) for value in values])


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
        value = _joined([result.value]) if mode == "gather" else result.value
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


def identity(op: str | None, like: Any, xp: Any = np) -> Any | None:
    """Return the new value of an updated variable in a call without rows, or None to keep the old value.

    It is the identity of ``op``, such as 0 for "sum". "avg" and None have none, and keep the old value.
    ``like`` is that value, of which shape and dtype are taken, and ``xp`` its array module.
    """
    if op == "sum":
        return xp.zeros_like(like)
    if op == "prod":
        return xp.ones_like(like)
    if op in ("min", "max"):
        return xp.full_like(like, like.dtype.type(_extreme(like.dtype, largest=op == "min")))
    if op == "gather":
        return like[:0].copy()
    return None


def _extreme(dtype: np.dtype[Any], largest: bool) -> Any:
    """Return the largest, or the smallest, number of a dtype: an infinity if it has one."""
    if dtype.kind == "b":
        return largest
    if dtype.kind == "f":
        return np.inf if largest else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if largest else limits.min
