"""Products of matrices on a GPU: by `cublas` where it takes the dtypes, else by CuPy.

product(xp, left, right, out_dtype) -> multiply, or matmul
"""

from typing import Any

import numpy as np

from synk.compile.tables import takes_out
from synk.gpu.dispatch.cublas import can_multiply, multiply


@takes_out
def product(xp: Any, left: Any, right: Any, out_dtype: Any = None, out: Any = None) -> Any:
    """Return ``left @ right``, of shapes (..., m, k) and (..., k, n) or vectors; other axes broadcast.

    Transposed or broadcast views are read without a copy. ``out_dtype`` is by default that of the factors. If
    it is float32 and the factors have 16 bits, sums are computed and returned in float32, by cuBLAS, or of
    factors that are cast. ``out`` has this dtype, the result's shape, and memory of its own.
    """
    factors = np.promote_types(left.dtype, right.dtype)
    dtype = factors if out_dtype is None else np.dtype(out_dtype)
    if not can_multiply(factors, dtype):
        return xp.matmul(_cast(left, dtype), _cast(right, dtype), out=out)
    if min(left.ndim, right.ndim) == 1:
        return _product_of_vectors(xp, left, right, dtype, out)
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matrices of shapes {left.shape} and {right.shape} cannot be multiplied: the last length of "
            "the left one and the one before the last of the right one differ"
        )
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    fits = out is not None and out.shape == shape and out.dtype == dtype and out.flags.c_contiguous
    result = out if fits else xp.empty(shape, dtype)
    if 0 in shape or left.shape[-1] == 0:
        result.fill(0)
    else:
        left, right = (_with_axes(_cast(factor, factors), len(shape)) for factor in (left, right))
        multiply(xp, left, right, result)
    if out is None or fits:
        return result
    out[...] = result
    return out


def _product_of_vectors(xp: Any, left: Any, right: Any, dtype: Any, out: Any) -> Any:
    """Return the product if a factor is a vector, which counts as a matrix of one row or one column."""
    row, column = left.ndim == 1, right.ndim == 1
    as_matrices = left[None] if row else left, right[:, None] if column else right
    result = product(xp, *as_matrices, dtype)
    result = result[..., 0] if column else result
    result = result[..., 0, :] if row and not column else result[..., 0] if row else result
    if out is None:
        return result
    out[...] = result
    return out


def _cast(array: Any, dtype: Any) -> Any:
    return array if array.dtype == dtype else array.astype(dtype)


def _with_axes(array: Any, ndim: int) -> Any:
    return array[(None,) * (ndim - array.ndim)] if array.ndim < ndim else array
