"""Systems of linear equations whose matrix is triangular, or comes as its Cholesky factor.

A singular matrix gives NaN.
"""

from functools import partial

import numpy as np
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from synk.compile.dispatch.lapack import check_rows, lapack, scipy_linalg, work_dtype
from synk.compile.tables import array_funcify


@array_funcify.register(SolveTriangular)
def solve_triangular(op, node, xp):
    """A triangular matrix; the other triangle is not read."""
    dtype = work_dtype(node)
    if xp is np:
        return _trtrs(op, dtype)
    function = scipy_linalg(xp).solve_triangular

    def solution(a, b):
        check_rows(a, b)
        x = function(
            a.astype(dtype, copy=False),
            b.astype(dtype, copy=False),
            lower=op.lower,
            unit_diagonal=op.unit_diagonal,
            overwrite_b=op.overwrite_b,
        )
        if op.unit_diagonal:
            return x
        singular = (xp.diagonal(a) == 0).any()
        return xp.where(singular, xp.asarray(np.nan, dtype), x)

    return solution


def _trtrs(op, dtype):
    """Triangular solution by LAPACK."""
    trtrs = lapack("trtrs", dtype)

    def solution(a, b):
        check_rows(a, b)
        if not b.size:
            return np.empty(b.shape, dtype)
        # In memory, the lower triangle of C order is the upper one of Fortran order.
        flip = not a.flags.f_contiguous
        x, info = trtrs(
            a.T if flip else a,
            b,
            overwrite_b=op.overwrite_b,
            lower=op.lower != flip,
            trans=int(flip),
            unitdiag=op.unit_diagonal,
        )
        if info:
            x[...] = np.nan
        return x

    return solution


@array_funcify.register(CholeskySolve)
def cholesky_solve(op, node, xp):
    """A positive definite matrix, of which the Cholesky factor is given."""
    dtype = work_dtype(node)
    if xp is np:
        return _potrs(op, dtype)
    triangular = partial(scipy_linalg(xp).solve_triangular, lower=op.lower)
    first, second = (0, "C") if op.lower else ("C", 0)

    def solution(factor, b):
        check_rows(factor, b)
        factor = factor.astype(dtype, copy=False)
        return triangular(factor, triangular(factor, b.astype(dtype, copy=False), trans=first), trans=second)

    return solution


def _potrs(op, dtype):
    """Cholesky solution by LAPACK."""
    potrs = lapack("potrs", dtype)

    def solution(factor, b):
        check_rows(factor, b)
        if not b.size:
            return np.empty(b.shape, dtype)
        return potrs(factor, b, lower=op.lower, overwrite_b=op.overwrite_b)[0]

    return solution
