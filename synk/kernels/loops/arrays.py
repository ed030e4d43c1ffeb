"""What every loop needs of its arrays: inputs as C reads them, and memory for results.

Imports NumPy only.
"""

from typing import Any

import numpy as np


def contiguous(dtype: np.dtype, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the arrays in C order and of one dtype; those that are not are copied."""
    return [np.ascontiguousarray(array, dtype) for array in arrays]


def results(out: Any, dtype: np.dtype, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return arrays to write to: those in the tuple ``out``, new ones for each None.

    Raises
    ------
    ValueError
        An array in ``out`` has another shape or dtype, or is not C-contiguous.
    """
    given = (None,) * len(shapes) if out is None else out
    return [array_for(wanted, dtype, shape) for wanted, shape in zip(given, shapes, strict=True)]


def array_for(out: np.ndarray | None, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``out``, or a new array for None.

    Raises
    ------
    ValueError
        As `results`: C would write elsewhere.
    """
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        order = "C-contiguous" if out.flags.c_contiguous else "not C-contiguous"
        raise ValueError(
            f"out is {order}, {out.dtype} and of shape {out.shape}; pass a C-contiguous array of dtype "
            f"{np.dtype(dtype)} and shape {shape}"
        )
    return out
