"""Entries for products of matrices, and of batches of them.

    dot_of(xp, factors) -> ``dot`` of the array module
                        -> NumPy: oneDNN for matrices of float32, where it is faster

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

from synk.compile.array_modules import array_module
from synk.compile.compat import Ger
from synk.compile.native.onednn_products import faster_products
from synk.compile.programs.text.transfer import is_on_device
from synk.compile.tables import array_funcify, flops_of, takes_out

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
    matmul = array_module(xp).matmul

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


def dot_of(xp: Any, *factors: Variable) -> Callable:
    """Return ``dot(left, right, out=None)`` of an array module, for matrices and vectors."""
    if xp is np and [(v.type.ndim, v.type.dtype) for v in factors] == [(2, "float32")] * 2:
        return faster_products() or np.dot
    return array_module(xp).dot
