"""What every loop needs of its arrays: inputs as C reads them, and memory for results."""

from typing import Any

import numpy as np

from synk.kernels.results import array_for


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
    return [array_for(np, wanted, dtype, shape) for wanted, shape in zip(given, shapes, strict=True)]
