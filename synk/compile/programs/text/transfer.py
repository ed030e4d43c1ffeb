"""Move values between host and device, and convert them between 32 and 16 bits.

    host (NumPy) -- to_device --> device (arrays of another module) -- to_host --> host
    float32 -- to_dtype --> float16 or bfloat16, and back

Programs call these functions where ``host_or_device`` and ``narrow`` have decided so.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np


def to_host(value: Any, xp: ModuleType) -> Any:
    """Return ``value`` as a NumPy array; one that is on the host is returned as it is."""
    return value if is_on_host(value) else xp.asnumpy(value)


def to_device(value: Any, xp: ModuleType) -> Any:
    """Return ``value`` as an array of ``xp``; one that is on the device is returned as it is."""
    if not is_on_host(value):
        return value
    if value.size == 1:
        # The number travels with the launch that fills: nothing is copied.
        return xp.full(value.shape, value.reshape(())[()], value.dtype)
    return xp.asarray(value)


def copied_into(place: Any, value: Any) -> Any:
    """Copy a value into the device array ``place`` and return it; return the value if it does not fit.

    Recorded launches of kernels contain the addresses of shared variables, so they stay valid only while a
    variable keeps its array.
    """
    arrays = is_on_device(place) and (is_on_host(value) or is_on_device(value))
    if value is place or not arrays or not place.flags.c_contiguous:
        return value
    if (value.shape, value.dtype) != (place.shape, place.dtype):
        return value
    fill(place, value)
    return place


def fill(place: Any, value: Any) -> None:
    """Copy a value of the same shape and dtype into an array on the device."""
    if not value.size:
        return
    if is_on_host(value) and value.size == 1:
        place.fill(value.reshape(())[()])  # the number travels with the launch
    elif is_on_host(value):
        # A copy: from page-locked memory, a data set's, a device would read when the caller has it back.
        place.set(np.array(value, order="C"))
    else:
        place[...] = value


def to_scalar(value: Any, xp: ModuleType) -> Any:
    """Return an array of one element as a NumPy scalar, which a kernel's launch passes by value."""
    return to_host(value, xp).reshape(())[()]


def is_on_host(value: Any) -> bool:
    """Tell whether ``value`` is a NumPy array or scalar."""
    return isinstance(value, np.ndarray | np.generic)


def is_on_device(value: Any) -> bool:
    """Tell whether ``value`` is an array on a device."""
    return hasattr(type(value), "__cuda_array_interface__")  # the property itself takes its time


def to_dtype(value: Any, xp: ModuleType, dtype: str) -> Any:
    """Return a copy of ``value`` in another dtype."""
    return value.astype(dtype)


NARROW = ("float16", "bfloat16")  # what float32 arrays may be rounded to

CROSSINGS: dict[str, Callable[..., Any]] = {
    "host": to_host,
    "device": to_device,
    "scalar": to_scalar,
    **{dtype: partial(to_dtype, dtype=dtype) for dtype in ("float32", *NARROW)},
}


def check_narrow(dtype: str) -> None:
    """Raise ValueError unless ``dtype`` is a float of 16 bits, ImportError if bfloat16 needs ml_dtypes."""
    if dtype not in NARROW:
        raise ValueError(f"narrow={dtype!r} is unknown; choose one of {', '.join(NARROW)}")
    if dtype == "bfloat16":
        if find_spec("ml_dtypes") is None:
            raise ImportError(
                "bfloat16 is a dtype of ml_dtypes, which is not installed: pip install ml_dtypes"
            )
        import ml_dtypes  # noqa: F401  (NumPy knows the dtype by its name from then on)
