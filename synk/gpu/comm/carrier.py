"""Pack arrays for a reduction by NCCL, so that the result is the one that synk documents.

NCCL reduces eight dtypes, rounds float16 at every step, loses NaN in "min" and "max", and may
overflow in the sum behind an average. So arrays are packed before and unpacked after:

    array -> pack: view, widen, scale or reorder it as a dtype that NCCL reduces -> NCCL -> unpack

This is arithmetic of the array module alone, so every rule here is tested with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from synk.values.operations import check_operation

REDUCED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
SEEN_AS = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}
WIDENED_TO = {"float16": "float32", "bfloat16": "float32", "int16": "int32", "uint16": "uint32"}

Change = Callable[[Any, Any], Any]  # (array module, flat array) -> flat array


class Packing(NamedTuple):
    """One change of form and its inverse."""

    pack: Change
    unpack: Change


class Carrier(NamedTuple):
    """The packing of arrays of one dtype for NCCL."""

    dtype: str  # one of `REDUCED`
    op: str  # the operation that NCCL is asked for
    steps: tuple[Packing, ...]

    def pack(self, xp: Any, array: Any) -> Any:
        """Return the array as NCCL takes it: flat and contiguous, without a copy where possible."""
        flat = contiguous(array).reshape(-1)
        for step in self.steps:
            flat = step.pack(xp, flat)
        return flat

    def unpack(self, xp: Any, flat: Any, shape: tuple[int, ...]) -> Any:
        """Return the result of NCCL in the array's dtype and ``shape``."""
        for step in reversed(self.steps):
            flat = step.unpack(xp, flat)
        return flat.reshape(shape)


def contiguous(array: Any) -> Any:
    """Return an array, or a copy of it, whose elements lie in C order without gaps."""
    return array if array.flags.c_contiguous else array.copy()


def carrier_of(op: str, dtype: Any, n_ranks: int) -> Carrier | None:
    """Return how to pack arrays of ``dtype``, or None if NCCL cannot do ``op`` on them.

    Raise TypeError if ``op`` has no meaning for the dtype, as in `check_operation`, or if NCCL does not know
    the dtype.
    """
    check_operation(op, dtype.str, "the array")
    if dtype.kind == "c" and op == "prod":
        return None  # packed as two floats, real and imaginary parts would be multiplied apart
    name, steps = dtype.name, []
    if name in SEEN_AS:
        steps.append(_seen_as(SEEN_AS[name], dtype))
        name = SEEN_AS[name]
    elif name in WIDENED_TO:
        steps.append(_widened(WIDENED_TO[name], dtype))
        name = WIDENED_TO[name]
    if name not in REDUCED:
        raise TypeError(f"NCCL cannot reduce an array of {dtype}; cast it to one of {', '.join(REDUCED)}")
    if name.startswith("float"):
        if op in ("min", "max"):
            steps.append(_ordered(name, op))
            name = name.replace("float", "int")
        elif op == "avg" and n_ranks & (n_ranks - 1):
            steps.append(_scaled(name, n_ranks))
            op = "sum"
        # NCCL_AVG multiplies by 1 / n_ranks first. For a power of two that is exact and cannot overflow.
    return Carrier(name, op, tuple(steps))


def _seen_as(name: str, dtype: Any) -> Packing:
    return Packing(lambda xp, flat: flat.view(name), lambda xp, flat: flat.view(dtype))


def _widened(name: str, dtype: Any) -> Packing:
    return Packing(lambda xp, flat: flat.astype(name), lambda xp, flat: flat.astype(dtype))


def _scaled(name: str, n_ranks: int) -> Packing:
    """Return the packing of an average: a sum of terms that are scaled down, so that it cannot overflow.

    The scale s is a power of two, which rounds nothing, so ``(Σ x / s) / n · s`` has the bits of ``(Σ x) /
    n``.
    """
    real = np.dtype(name).type
    scale, largest = real(1 << (n_ranks - 1).bit_length()), np.finfo(name).max

    def unpack(xp: Any, total: Any) -> Any:
        average = total / real(n_ranks) * scale
        # Where the sum is finite, so were all terms; rounding may still lift the average above the
        # largest number.
        return xp.where(xp.isfinite(total), xp.clip(average, -largest, largest), average)

    return Packing(lambda xp, flat: flat * (1 / scale), unpack)


def _ordered(name: str, op: str) -> Packing:
    """Return the packing of "min" and "max": floats become integers in the same order, and NaN wins.

    The bits of a positive float, read as an integer, grow with the float; those of a negative one shrink, so
    all of them but the sign are inverted. The result has the bits of one of the terms, or of a NaN.
    """
    integer = np.dtype(name.replace("float", "int"))
    limits = np.iinfo(integer)
    extreme = integer.type(limits.max if op == "max" else limits.min)
    magnitude, sign_shift = integer.type(limits.max), integer.type(limits.bits - 1)

    def turned(keys: Any) -> Any:
        return keys ^ ((keys >> sign_shift) & magnitude)

    def pack(xp: Any, flat: Any) -> Any:
        return xp.where(xp.isnan(flat), extreme, turned(flat.view(integer)))

    return Packing(pack, lambda xp, keys: turned(keys).view(name))
