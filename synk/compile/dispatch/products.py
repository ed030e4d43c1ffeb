"""Products of matrices and of batches of them, on any array module, also with results wider than the factors.

product(xp, left, right, out_dtype) -> NumPy, others: matmul of factors cast to out_dtype
                                    -> CuPy: `cublas`, where it takes these dtypes, else the same
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from synk.compile.dispatch.cublas import can_multiply, multiply
from synk.compile.tables import takes_out


def matmul_of(xp: Any) -> Callable:
    """Return ``matmul(left, right, out=None)`` of an array module."""
    return partial(product, xp) if _has_cublas(xp) else xp.matmul


def dot_of(xp: Any) -> Callable:
    """Return ``dot(left, right, out=None)`` of an array module, for matrices and vectors."""
    return partial(product, xp) if _has_cublas(xp) else xp.dot


@takes_out
def product(xp: Any, left: Any, right: Any, out_dtype: Any = None, out: Any = None) -> Any:
    """Return ``left @ right``.

    Parameters
    ----------
    xp : module
        Array module.
    left, right : array, shapes (..., m, k) and (..., k, n)
        Or vectors. Axes before the last two broadcast. With CuPy, views of transposed or broadcast arrays
        are read where they are.
    out_dtype : dtype, optional
        Of the result, default that of the factors. float32 with factors of 16 bits adds up, and returns,
        numbers of 32 bits; elsewhere than in cuBLAS by casting the factors.
    out : array, optional
        Where the result goes: its shape, dtype ``out_dtype``, apart from the factors.

    Returns
    -------
    array, shape (..., m, n)
    """
    factors = np.promote_types(left.dtype, right.dtype)
    dtype = factors if out_dtype is None else np.dtype(out_dtype)
    if not (_has_cublas(xp) and can_multiply(factors, dtype)):
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
    """Multiply where a factor is a vector, which is a matrix of one row or one column."""
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


def _has_cublas(xp: Any) -> bool:
    return xp.__name__ == "cupy"
