"""Combine the arrays of all ranks, block by block, in rank order.

    Blocks(arrays, op, targets) -> run, as often as their values change

The views of all blocks are made once. A block of each array stays in the cache while it is
combined: then the memory's speed is all that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.values.floating import IGNORING, STRICT
from synk.values.operations import UFUNCS, accumulating_dtype

CACHED = 1 << 18  # bytes of all arrays' blocks together: a quarter of a usual L2 cache
SMALLEST = 1 << 12  # elements of a block: fewer, and calling NumPy takes longer than what it does

Scratch = dict[Any, NDArray[Any]]  # by dtype, room for a block


def block_length(n_arrays: int, itemsize: int) -> int:
    """Return how many elements of each of ``n_arrays`` arrays to combine at a time."""
    return max(SMALLEST, CACHED // (n_arrays * itemsize))


class Blocks:
    """The combination of flat arrays, in rank order, whose result is written to one or several targets.

    Targets have the length of the arrays, and may be arrays themselves. ``scratch`` is memory that may be
    shared by combinations that run one after the other.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        op: str,
        targets: Sequence[NDArray[Any]],
        scratch: Scratch,
    ):
        dtype = arrays[0].dtype
        self._ufunc = UFUNCS[op]
        self._n = len(arrays)
        self._is_average = op == "avg"
        self._can_overflow = dtype.kind in "fc"
        length = block_length(self._n, dtype.itemsize)
        wide = accumulating_dtype(dtype)
        # The total goes to scratch memory if its terms are still needed: for an average until it is known not
        # to overflow, and if the target is one of the later terms.
        in_place = wide == dtype and not self._is_average and _may_hold_total(targets[0], arrays)
        if not in_place and dtype not in scratch:
            scratch[dtype] = np.empty(length, wide)
        self._divide, self._divisor = _division(wide, self._n)
        self._strict, self._ignoring = STRICT.copy(), IGNORING.copy()
        self._blocks = []
        for start in range(0, arrays[0].size, length):
            terms = [array[start : start + length] for array in arrays]
            places = [target[start : start + length] for target in targets]
            total = places[0] if in_place else scratch[dtype][: terms[0].size]
            self._blocks.append((terms, total, [place for place in places if place is not total]))

    def run(self) -> None:
        """Combine the present values of the arrays."""
        if not self._can_overflow:
            self._combine()
        elif self._is_average:
            self._strict.run(self._average)
        else:
            self._ignoring.run(self._combine)  # infinities and NaN are values, as in programs

    def _combine(self) -> None:
        for terms, total, places in self._blocks:
            self._accumulate(terms, total)
            _copy(total, places)

    def _average(self) -> None:
        for terms, total, places in self._blocks:
            try:
                self._accumulate(terms, total)
            except FloatingPointError:
                with np.errstate(all="ignore"):
                    self._accumulate(terms, total)
                    self._divide(total, self._divisor, out=total)
                    recompute_overflows(terms, total)
            else:
                # The terms are no longer needed: if nothing is cast, divide straight into a target.
                result = places[0] if places[0].dtype == total.dtype else total
                self._divide(total, self._divisor, out=result)
                total = result
            _copy(total, places)

    def _accumulate(self, terms: list[NDArray[Any]], total: NDArray[Any]) -> None:
        first, *others = terms
        if others and total.dtype == first.dtype:
            self._ufunc(first, others[0], out=total)
            del others[0]
        elif total is not first:
            total[...] = first
        for term in others:
            self._ufunc(total, term, out=total)


def _may_hold_total(target: NDArray[Any], arrays: Sequence[NDArray[Any]]) -> bool:
    """Tell whether a target may hold the running total, and so be overwritten before all arrays are read."""
    return target is arrays[0] or not any(target is array for array in arrays)


def _division(dtype: np.dtype[Any], n: int) -> tuple[np.ufunc, NDArray[Any]]:
    """Return the operation and operand that divide by ``n``: a product if 1 / n is exact, which is faster."""
    if dtype.kind == "f" and n & (n - 1) == 0:
        return np.multiply, np.array(1 / n, dtype)
    return np.true_divide, np.array(n, dtype)


def _copy(total: NDArray[Any], places: list[NDArray[Any]]) -> None:
    source = total
    for place in places:
        if place is not source:
            place[...] = source
        source = place  # the first copy has rounded the total; the others need not round again


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
