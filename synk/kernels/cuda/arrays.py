"""Arrays as kernels read them, and what they say about vector instructions."""

from types import ModuleType
from typing import Any

from synk.kernels.cuda.library import KINDS, Kind

ALIGNMENT = 16  # bytes, which one instruction reads


def kind_of(array: Any) -> Kind | None:
    """Return what kernels need to know of an array's dtype, or None where there is no kernel for it."""
    return KINDS.get(array.dtype.name) if array.size else None


def contiguous(xp: ModuleType, dtype: Any, *arrays: Any) -> list[Any]:
    """Return the arrays in C order and of one dtype; those that are not are copied."""
    return [xp.ascontiguousarray(array.astype(dtype, copy=False)) for array in arrays]


def elements_at_once(kind: Kind, row: int, *arrays: Any) -> int:
    """Return how many elements a kernel may read by one instruction: 16 bytes of them, or one.

    Parameters
    ----------
    kind : Kind
    row : int
        Elements in a row: the first of each must lie at a multiple of 16 bytes.
    *arrays
        That are read and written row by row.
    """
    aligned = row % kind.vector == 0 and all(array.data.ptr % ALIGNMENT == 0 for array in arrays)
    return kind.vector if aligned else 1
