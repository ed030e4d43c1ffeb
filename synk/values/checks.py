"""Convert the values that a script gives to arrays or numbers, or raise an error that says what to do.

array_like -> as_array -> NumPy array
value that a variable does not take -> why_refused -> text of the error
number of ranks, rows, slices, ... -> checked_count -> int
two shapes, as far as they are known -> may_be_equal -> bool
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS = "biufc"  # kinds of dtype that ranks compute with
HOST_MEMORY = (1, 3)  # of DLPack's kinds of device: kDLCPU, kDLCUDAHost

# What to do about other kinds of dtype.
REMEDIES = {
    "O": "convert it to numbers first, with NaN for what is missing: np.asarray(value, dtype='float64')",
    "U": "turn text into numbers first, classes by np.unique(value, return_inverse=True)[1]",
    "S": "turn text into numbers first, classes by np.unique(value, return_inverse=True)[1]",
    "M": "pass numbers, such as the seconds (value - start) / np.timedelta64(1, 's')",
    "m": "pass numbers, such as the seconds value / np.timedelta64(1, 's')",
}
OF_RECORDS = "pass one field of it, value[name], or join fields by np.column_stack"


def plain(value: Any, what: str) -> Any:
    """Return the value itself or, if it offers DLPack only, the NumPy array of the same memory.

    Raises TypeError for masked and sparse arrays, from which NumPy would lose the mask or the layout, and for
    arrays that are in the memory of a device. ``what`` names the value in errors.
    """
    if isinstance(value, np.ma.MaskedArray) and value.dtype.names is None and np.ma.is_masked(value):
        raise TypeError(
            f"{what} is a masked array, {np.ma.count_masked(value)} of {value.size} values masked, "
            "and ranks get no mask; pass value.filled(number), or leave those rows out"
        )
    if hasattr(value, "tocsr"):
        raise TypeError(f"{what} is sparse ({type(value).__name__}); pass dense rows: value.toarray()")
    if hasattr(value, "__array__"):
        return value
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(value, what)
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(_elsewhere(value, what))
    return value


def _from_dlpack(value: Any, what: str) -> NDArray[Any]:
    """Return a NumPy array that shares the memory of an object that offers DLPack but not ``__array__``.

    Raises TypeError if the memory is that of a device, or if NumPy does not take the object.
    """
    try:
        on_host = int(value.__dlpack_device__()[0]) in HOST_MEMORY
        array = np.from_dlpack(value) if on_host else None
    except Exception as error:  # whatever another library raises, for a dtype that NumPy lacks, say
        said = f"{type(error).__name__}: {error}"
        raise TypeError(f"{what} is no array of NumPy's ({type(value).__name__}): {said}") from error
    if array is None:
        raise TypeError(_elsewhere(value, what))
    return array


def _elsewhere(value: Any, what: str) -> str:
    """Return the error message for an array that is in the memory of a device."""
    return (
        f"{what} is in the memory of a device ({type(value).__name__}), and ranks take arrays of the host; "
        "copy it there: value.get() in CuPy, value.cpu() in PyTorch, np.asarray(value) in JAX"
    )


def as_array(value: Any, what: str) -> NDArray[Any]:
    """Return a value as a NumPy array of any dtype.

    Raises TypeError as `plain` does, and ValueError if NumPy makes no array of it, as of ragged lists.
    """
    value = plain(value, what)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is no array: {error}") from None


def remedy(dtype: np.dtype[Any], wanted: str) -> str:
    """Return advice for an error message: how to convert a value of ``dtype`` to the dtype ``wanted``."""
    if dtype.names is not None:
        return OF_RECORDS
    if dtype.kind == "c":
        return "pass value.real, or abs(value)"
    return REMEDIES.get(dtype.kind, f"cast it: np.asarray(value, dtype={wanted!r})")


def why_refused(value: Any, dtype: str, shape: Sequence[int | None], what: str) -> str | None:
    """Return the reason why a symbolic variable does not take a value, or None if no reason is found.

    The variable has the given dtype and shape, in which None stands for any length; ``what`` is its name in
    the text that is returned.
    """
    try:
        array = np.asarray(value)
    except Exception:
        return None
    if array.ndim != len(shape) and array.dtype.kind in NUMBERS:
        return f"{what} has {len(shape)} dimensions, the value has {array.ndim} (shape {array.shape})"
    if array.dtype.kind in NUMBERS and np.can_cast(array.dtype, dtype, "safe"):
        return None
    kind = f"{type(value).__name__} of dtype {array.dtype}"
    reason = ", which loses precision there" if array.dtype.kind in NUMBERS else ""
    return f"{what} has dtype {dtype}, the value is {kind}{reason}; {remedy(array.dtype, dtype)}"


def checked_count(name: str, value: Any, least: int = 1, advice: str = "") -> int:
    """Return a value as an int; raise TypeError if it is no integer, ValueError if it is less than ``least``.

    ``name`` is that of the argument in errors, which end with ``advice``: what to pass instead.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    ending = f"; {advice}" if advice else ""
    if number is None:
        raise TypeError(f"{name}={value!r} is not an integer{ending}")
    if number < least:
        raise ValueError(f"{name}={number} is less than {least}{ending}")
    return number


def checked_flag(name: str, value: Any) -> bool:
    """Return an option that is either true or false; raise TypeError if it is neither."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} is neither True nor False")
    return bool(value)


def may_be_equal(one: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Say whether two shapes may be the same; None stands for any length. Nothing is broadcast."""
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )
