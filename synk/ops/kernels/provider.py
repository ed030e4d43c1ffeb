"""The base class of providers of kernels, and functions that check or allocate memory for results."""

from types import ModuleType
from typing import Any

import numpy as np


class Provider:
    """Kernels for arrays of module ``xp``: each method takes an Op's geometry and returns a function.

    That function takes arrays, and ``out=``, the array to write the result to; a tuple if there are several.
    """

    by_dtype = False  # whether kernels take arrays of 16 bits and return such, without conversion

    def __init__(self, xp: ModuleType):
        self._xp = xp


def arrays_for(xp: ModuleType, out: Any, dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Return the arrays of the tuple ``out``, with a new one for each None; see `array_for`."""
    places = (None,) * len(shapes) if out is None else out
    return [array_for(xp, place, dtype, shape) for place, shape in zip(places, shapes, strict=True)]


def array_for(xp: ModuleType, out: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return ``out``, or a new array if it is None.

    Raise ValueError if ``out`` has another shape or dtype, or is not C-contiguous: a kernel would write
    beyond it.
    """
    if out is None:
        return xp.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        order = "C-contiguous" if out.flags.c_contiguous else "not C-contiguous"
        raise ValueError(
            f"out is {order}, {out.dtype} and of shape {out.shape}; pass a C-contiguous array of dtype "
            f"{np.dtype(dtype)} and shape {shape}"
        )
    return out
