"""Entries for linear algebra in one call: determinants, inverses, least squares, exponential, block matrices.

Nearly all of these implementations take whole batches.
"""

from itertools import accumulate

import numpy as np
from pytensor.tensor.linalg.constructors import BlockDiagonal
from pytensor.tensor.linalg.inverse import MatrixInverse, MatrixPinv, TensorInv
from pytensor.tensor.linalg.products import Expm
from pytensor.tensor.linalg.solvers.lstsq import Lstsq, TensorSolve
from pytensor.tensor.linalg.summary import Det, SLogDet

from synk.compile.dispatch.lapack import as_declared, in_batches, raising, scipy_linalg, work_dtype
from synk.compile.tables import array_funcify


@array_funcify.register(Det)
def det(op, node, xp):
    """Compute the determinant."""
    dtype = work_dtype(node)
    return in_batches(lambda x: xp.linalg.det(x.astype(dtype, copy=False)))


@array_funcify.register(SLogDet)
def slogdet(op, node, xp):
    """Compute the sign of the determinant, and the logarithm of its absolute value."""
    dtype = work_dtype(node)
    return in_batches(lambda x: tuple(xp.linalg.slogdet(x.astype(dtype, copy=False))))


@array_funcify.register(MatrixInverse)
def inverse(op, node, xp):
    """Compute the inverse; raise LinAlgError if there is none."""
    dtype, inv = work_dtype(node), raising(xp, xp.linalg.inv)
    return in_batches(lambda x: inv(x.astype(dtype, copy=False)))


@array_funcify.register(MatrixPinv)
def pseudo_inverse(op, node, xp):
    """Compute the Moore-Penrose inverse."""
    dtype, pinv = work_dtype(node), raising(xp, xp.linalg.pinv)
    # NumPy alone has a short cut for Hermitian matrices.
    keywords = {"hermitian": op.hermitian} if xp is np else {}
    return in_batches(lambda x: pinv(x.astype(dtype, copy=False), **keywords))


@array_funcify.register(TensorInv)
def tensor_inverse(op, node, xp):
    """Compute the inverse with respect to ``tensordot``."""
    function, dtype = raising(xp, xp.linalg.tensorinv), work_dtype(node)
    return lambda a: as_declared(function(a.astype(dtype, copy=False), op.ind), node.outputs[0])


@array_funcify.register(TensorSolve)
def tensor_solve(op, node, xp):
    """Compute ``x`` with ``tensordot(a, x) = b``."""
    function, dtype = raising(xp, xp.linalg.tensorsolve), work_dtype(node)

    def solve(a, b):
        x = function(a.astype(dtype, copy=False), b.astype(dtype, copy=False), op.axes)
        return as_declared(x, node.outputs[0])

    return solve


@array_funcify.register(Lstsq)
def least_squares(op, node, xp):
    """Compute the least-squares solution, squared residuals, the rank and singular values."""

    def solve(x, y, rcond):
        results = xp.linalg.lstsq(x, y, rcond=rcond.item())
        return tuple(
            [
                as_declared(xp.asarray(value), variable)
                for value, variable in zip(results, node.outputs, strict=True)
            ]
        )

    return solve


@array_funcify.register(Expm)
def exponential(op, node, xp):
    """Compute the exponential of a square matrix."""
    dtype, expm = work_dtype(node), scipy_linalg(xp).expm

    def function(x):
        return expm(x.astype(dtype, copy=False)).astype(dtype, copy=False)

    return in_batches(function) if xp is np else function


@array_funcify.register(BlockDiagonal)
def block_diagonal(op, node, xp):
    """Place matrices along the diagonal of a matrix that is zero elsewhere."""
    dtype = node.outputs[0].type.dtype

    def place(*blocks):
        batch = np.broadcast_shapes(*[block.shape[:-2] for block in blocks])
        rows, columns = [[0, *accumulate(block.shape[axis] for block in blocks)] for axis in (-2, -1)]
        result = xp.zeros((*batch, rows[-1], columns[-1]), dtype)
        for i, block in enumerate(blocks):
            result[..., rows[i] : rows[i + 1], columns[i] : columns[i + 1]] = block
        return result

    return in_batches(place)
