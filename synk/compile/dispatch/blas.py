"""Entries for products of matrices, of batches too, and `product` for factors narrower than their result.

    product(xp, left, right, out_dtype) -> NumPy, others: matmul of factors cast to out_dtype
                                        -> CuPy: `cublas`, where it takes these dtypes, else the same
    dot_of(xp, factors)                 -> NumPy: oneDNN for matrices of float32, where it is faster

In every update ``beta * z + alpha * (x @ y)`` the target may be uninitialised memory when ``beta`` is 0, so
it is overwritten then, never multiplied.

The product is computed into an array of its own, and added. SciPy's ``gemm`` adds it in place, in 2 % less
time at 250 x 800 x 800, but importing it takes 0.1 s and brings a second BLAS with threads of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm, Gemv
from pytensor.tensor.math import Dot

from synk.compile.compat import Ger
from synk.compile.native.onednn_products import faster_products
from synk.compile.programs.text.transfer import is_on_device
from synk.compile.tables import array_funcify, flops_of, takes_out
from synk.gpu.dispatch.cublas import can_multiply, multiply

# The position of the left factor among the inputs; its last axis is the one that is summed over.
LEFT = {Dot: 0, Dot22: 0, Dot22Scalar: 0, BatchedDot: 0, Gemm: 2, Gemv: 2}


def count_products(left, inputs, results):
    """Return the operations of a product: two for each element of the result and each term of its sum."""
    return 2 * int(inputs[left].shape[-1]) * int(results[0].size)


for op_class, left in LEFT.items():
    flops_of.register(op_class)(lambda op, left=left: partial(count_products, left))


@array_funcify.register(Dot)
@array_funcify.register(Dot22)
def dot(op, node, xp):
    """Compute ``x @ y`` of matrices or vectors."""
    return dot_of(xp, *node.inputs)


@array_funcify.register(Dot22Scalar)
def scaled_dot(op, node, xp):
    """Compute ``alpha * (x @ y)``."""
    dot = dot_of(xp, *node.inputs[:2])

    def product(x, y, alpha, out=None):
        result = dot(x, y, out=out)
        result *= alpha
        return result

    return takes_out(product)


@array_funcify.register(BatchedDot)
def batched_dot(op, node, xp):
    """Compute ``x[i] @ y[i]`` for every i."""
    matmul = matmul_of(xp)

    def product(x, y, out=None):
        if len(x) != len(y):
            raise TypeError(
                f"batches of {len(x)} and {len(y)} matrices cannot be multiplied; make them equal"
            )
        return matmul(x, y, out=out)

    return takes_out(product)


@array_funcify.register(Gemm)
def gemm(op, node, xp):
    """Compute ``beta * z + alpha * (x @ y)`` of matrices."""
    _, _, x, y, _ = node.inputs
    inplace, dot = op.inplace, dot_of(xp, x, y)

    def update(z, alpha, x, y, beta, out=None):
        return _update(z, alpha, dot(x, y, out=out), beta, inplace)

    return update if inplace else takes_out(update)


@array_funcify.register(Gemv)
def gemv(op, node, xp):
    """Compute ``beta * y + alpha * (matrix @ x)`` of vectors ``x`` and ``y``."""

    inplace, dot = op.inplace, dot_of(xp)

    def update(y, alpha, matrix, x, beta, out=None):
        if matrix.shape != (len(y), len(x)):
            raise ValueError(
                f"gemv: a matrix of shape {matrix.shape} does not map {len(x)} values to {len(y)}"
            )
        return _update(y, alpha, dot(matrix, x, out=out), beta, inplace)

    return update if inplace else takes_out(update)


@array_funcify.register(Ger)
def ger(op, node, xp):
    """Compute ``matrix + alpha * outer(x, y)``."""
    inplace = bool(op.destroy_map)

    def update(matrix, alpha, x, y, out=None):
        return _update(matrix, alpha, xp.multiply(x[:, None], y, out=out), 1.0, inplace)

    return update if inplace else takes_out(update)


def _update(target, alpha, product, beta, inplace):
    """Return ``beta * target + alpha * product``; if ``inplace`` in ``target``, else in ``product``."""
    if is_on_device(alpha) or alpha != 1:
        product *= alpha
    if target.shape != np.broadcast_shapes(target.shape, product.shape):
        inplace = False  # gemm lets the rows or columns of the target broadcast
    if not inplace:
        if beta != 0:
            product += target if beta == 1 else beta * target
        return product
    if beta == 0:
        target[...] = product
    else:
        if beta != 1:
            target *= beta
        target += product
    return target


def matmul_of(xp: Any) -> Callable:
    """Return ``matmul(left, right, out=None)`` of an array module."""
    return partial(product, xp) if _has_cublas(xp) else xp.matmul


def dot_of(xp: Any, *factors: Variable) -> Callable:
    """Return ``dot(left, right, out=None)`` of an array module, for matrices and vectors."""
    if xp is np and [(v.type.ndim, v.type.dtype) for v in factors] == [(2, "float32")] * 2:
        return faster_products() or np.dot
    return partial(product, xp) if _has_cublas(xp) else xp.dot


@takes_out
def product(xp: Any, left: Any, right: Any, out_dtype: Any = None, out: Any = None) -> Any:
    """Return ``left @ right``, of shapes (..., m, k) and (..., k, n) or vectors; other axes broadcast.

    With CuPy, transposed or broadcast views are read without a copy. ``out_dtype`` is by default that of the
    factors. If it is float32 and the factors have 16 bits, sums are computed and returned in float32, by
    cuBLAS, or elsewhere by casting the factors. ``out`` has this dtype, the result's shape, and memory of its
    own.
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


def _has_cublas(xp: Any) -> bool:
    return xp.__name__ == "cupy"
