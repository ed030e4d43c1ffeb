"""Combine the results of several slices and ranks: pure arithmetic, in a fixed order.

    slices of one rank -> Accumulator -> PartialResult -> of all ranks, in rank order -> combine

Averages carry their weight (rows), so slices and ranks of any length give the average over
all rows, which is finite if they are. The order never changes, so the same run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from synk.values.floating import STRICT

OPERATIONS = ("avg", "sum", "prod", "min", "max")
MODES = (*OPERATIONS, "gather", None)
IGNORED_PREFIX = "c_"  # in scripts of the ancestor it asks for the host path; here it is accepted and ignored
COMBINING = STRICT.copy()  # entered by one thread at a time: in its turn

UFUNCS: dict[str, np.ufunc] = {
    "avg": np.add,
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class PartialResult(NamedTuple):
    """A result over some of the rows."""

    value: Any  # array, in the accumulating dtype
    weight: int  # rows, or 1 where nothing is scattered


def check_operation(op: Any, dtype: str, what: str) -> str:
    """Return ``op`` if it can reduce ``dtype``; ``what`` names in errors what is reduced.

    Raises ValueError if ``op`` is unknown, and TypeError if it has no meaning for ``dtype``: "avg" of
    integers, "avg" or "sum" of booleans.
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
    """Return the mode of an output or update, one of `MODES`, without the prefix that is ignored.

    ``dtype`` is None for what is not an array, which only mode None can carry; ``what`` names it in errors.
    Raises as `check_operation`.
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
    """Return the dtype in which to accumulate: float32 for float16, else ``dtype`` itself."""
    return np.dtype("float32") if np.dtype(dtype) == np.float16 else np.dtype(dtype)


def mended_average(terms: Sequence[Any], average: Any) -> None:
    """Put right, in place, what of an average overflowed on the way: terms and result are finite.

    It is ``sum(terms) / len(terms)``, in a floating or complex dtype.
    """
    real = average.real.dtype  # parts of complex numbers overflow one by one
    terms, average = [term.astype(average.dtype, copy=False).view(real) for term in terms], average.view(real)
    wrong = ~np.isfinite(average)
    for term in terms:
        wrong &= np.isfinite(term)
    if not wrong.any():
        return
    # A power of two costs large numbers no bits, and those of small ones beside them do not count.
    scale = real.type(1 << (len(terms) - 1).bit_length())
    total = terms[0][wrong] / scale
    for term in terms[1:]:
        total += term[wrong] / scale
    largest = np.finfo(real).max
    average[wrong] = np.clip(total / real.type(len(terms)) * scale, -largest, largest)


def misfit(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return the error for shapes of parts of one result, which NumPy might broadcast."""
    return (
        f'slices or ranks have shapes {one} and {other}; one value for each row takes "gather", '
        "other results need one shape whatever the rows, as .mean(axis=0) has"
    )


class Accumulator:
    """Combine values that come one at a time, keeping only the running result; mode None keeps the last.

    An average is the sum of all rows over their number. Where that sum overflows, it is the mean of the
    rows so far instead, which is as large as they are.
    """

    def __init__(self, mode: str | None):
        self.mode = mode
        self.weight = 0
        self._values: list[Any] = []
        self._mean: Any = None  # beside a sum that overflowed somewhere
        self._owned = False  # whether the running value is ours to overwrite

    def add(self, value: Any, weight: int) -> None:
        """Take in a value over ``weight`` rows; the first one is not copied."""
        if self.mode is None or not self._values:
            self._values = [value]
            self.weight = weight
        elif self.mode == "gather":
            self._values.append(value)
            self.weight += weight
        elif value.shape != self._values[0].shape:
            raise ValueError(misfit(self._values[0].shape, value.shape))
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
        # Into the addend, which is ours: the total before is still there where this overflows.
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
    """Return the mean over the rows of both means, no step of which is larger than they are."""
    if np.iscomplexobj(one):
        mean = np.empty_like(one)
        mean.real = _mean_of_both(one.real, n_one, other.real, n_other)
        mean.imag = _mean_of_both(one.imag, n_one, other.imag, n_other)
        return mean
    share = one.dtype.type(n_other / (n_one + n_other))
    # Both shares are rounded, so that they may come to more than one.
    return np.clip(one * (1 - share) + other * share, np.minimum(one, other), np.maximum(one, other))


def _joined(values: list[Any]) -> Any:
    return np.concatenate([np.atleast_1d(value) for value in values])


class Output(NamedTuple):
    """The reduction of one output of a function."""

    mode: str | None  # "avg", "sum", "prod", "min", "max", "gather"; None takes the first rank with a result
    dtype: Any  # of what is returned; None for that of the results
    what: str  # as named in errors
    axis: int = 0  # of "gather": where the rows belong, which ranks have on axis 0

    def with_rows_in_place(self, value: Any) -> Any:
        """Return a gathered value with its rows where they belong, not copied."""
        return np.moveaxis(value, 0, self.axis) if self.axis else value


def combine(outputs: Sequence[Output], of_ranks: Sequence[Any]) -> list[Any]:
    """Combine the `Results` of all ranks, in rank order, of which some are None: a rank had no rows.

    Raises ValueError if values of one output differ in shape.
    """
    present = of_ranks
    if None in of_ranks:
        present = [results for results in of_ranks if results is not None]
    try:
        # By one call for all outputs: most of them are small.
        return COMBINING.run(_combined, outputs, present)
    except FloatingPointError:
        return [_careful_total(output, k, present) for k, output in enumerate(outputs)]


def _combined(outputs: Sequence[Output], present: Sequence[Any]) -> list[Any]:
    """Return the totals of `_careful_total` for each output, in fewer steps, where nothing overflows."""
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
    """Return a value as an array of ``dtype``; what is too large becomes infinite, as in programs."""
    if value.dtype == dtype:
        return np.asarray(value)
    with np.errstate(all="ignore"):
        return np.asarray(value, dtype=dtype)


def identity(op: str | None, like: Any, xp: Any = np) -> Any | None:
    """Return the value of an update accumulated over no rows at all, or None to keep the old value.

    An average over nothing, and the last of nothing, keep it. ``like`` is the variable's present value, for
    shape and dtype, and ``xp`` its array module.
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
    if dtype.kind == "b":
        return largest
    if dtype.kind == "f":
        return np.inf if largest else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if largest else limits.min
