"""Memory for the results of compiled kernels, which write where they are told."""

from types import ModuleType
from typing import Any

import numpy as np


def array_for(xp: ModuleType, out: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return ``out``, or a new array for None.

    Raises
    ------
    ValueError
        ``out`` has another shape or dtype, or is not C-contiguous: a kernel would write elsewhere.
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
