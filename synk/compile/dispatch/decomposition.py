"""Entries for triangular factors of a matrix: Cholesky, LU, QR.

A matrix without factors gives NaN. LAPACK works on Fortran order: an input that may be destroyed is
overwritten if it has that order and the right dtype, otherwise it is copied.
"""

import numpy as np
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.decomposition.lu import LU, LUFactor, PivotToPermutations
from pytensor.tensor.linalg.decomposition.qr import QR

from synk.compile.dispatch.lapack import (
    adjoint,
    as_declared,
    check_square,
    in_batches,
    lapack,
    raising,
    scipy_linalg,
    work_dtype,
)
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify

QR_MODES = {"full": "complete", "economic": "reduced"}  # SciPy's names: NumPy's


@array_funcify.register(Cholesky)
def cholesky(op, node, xp):
    """Compute the lower ``c`` with ``x = c c^H``, or the upper ``c`` with ``x = c^H c``."""
    dtype, function = work_dtype(node), raising(xp, xp.linalg.cholesky)

    def batched(x):
        x = x.astype(dtype, copy=False)
        return function(x) if op.lower else adjoint(xp, function(adjoint(xp, x)))

    def factor(x):
        check_square(x)
        try:
            return batched(x)
        except np.linalg.LinAlgError:
            return xp.full(x.shape, np.nan, dtype)

    implementation = _potrf(op.lower, op.overwrite_a, dtype) if xp is np else factor
    implementation.batched = batched
    return implementation


def _potrf(lower, overwrite, dtype):
    """Return a function that computes a Cholesky factor by LAPACK."""
    potrf = lapack("potrf", dtype)

    def factor(x):
        check_square(x)
        if not x.size:
            return np.empty(x.shape, dtype)
        # In memory, the lower triangle of C order is the upper one of Fortran order.
        flip = x.flags.c_contiguous
        c, info = potrf(x.T if flip else x, lower=lower != flip, overwrite_a=overwrite, clean=True)
        if info:
            c[...] = np.nan
        return c.T if flip else c

    return factor


@array_funcify.register(LU)
def lu(op, node, xp):
    """Compute ``x = P L U``; ``P`` as a matrix, as the order of ``L``'s rows, or multiplied into ``L``."""
    function, dtype = scipy_linalg(xp).lu, work_dtype(node)

    def whole(x):
        keywords = {"p_indices": op.p_indices} if xp is np else {}
        x = x.astype(dtype, copy=False)
        factors = function(x, permute_l=op.permute_l, check_finite=False, **keywords)
        if xp is not np and op.p_indices:
            factors = (xp.argmax(factors[0], axis=-1), *factors[1:])
        return tuple([as_declared(f, variable) for f, variable in zip(factors, node.outputs, strict=True)])

    if xp is not np:
        return whole
    factor = _lu_by_lapack(op, dtype)
    factor.batched = whole
    return factor


def _lu_by_lapack(op, dtype):
    """Return a function that computes LU by LAPACK.

    SciPy's own function gives wrong factors where it overwrites an array in Fortran order (SciPy 1.18).
    """
    getrf = lapack("getrf", dtype)

    def factor(x):
        check_square(x)
        packed, pivots = getrf(x, overwrite_a=op.overwrite_a)[:2] if x.size else (x, np.empty(0, "int32"))
        lower, upper = np.tril(packed, -1), np.triu(packed)
        np.fill_diagonal(lower, 1)
        rows = np.argsort(permutation(pivots)).astype("int32")
        if op.permute_l:
            return lower[rows], upper
        return rows if op.p_indices else np.eye(len(x), dtype=lower.real.dtype)[rows], lower, upper

    return factor


@array_funcify.register(LUFactor)
def lu_factor(op, node, xp):
    """Compute ``L`` and ``U`` in one matrix, and the row that each row was exchanged with."""
    dtype = work_dtype(node)

    def on_device(a):
        packed, pivots = scipy_linalg(xp).lu_factor(a.astype(dtype), overwrite_a=True, check_finite=False)
        singular = (xp.diagonal(packed) == 0).any()
        return xp.where(singular, xp.asarray(np.nan, dtype), packed), pivots

    factor = _getrf(op.overwrite_a, dtype) if xp is np else on_device

    def checked(a):
        check_square(a)
        return factor(a) if a.size else (xp.empty(a.shape, dtype), xp.empty(len(a), "int32"))

    return checked


def _getrf(overwrite, dtype):
    """Return a function that computes LU by LAPACK, with both factors packed in one matrix."""
    getrf = lapack("getrf", dtype)

    def factor(a):
        packed, pivots, info = getrf(a, overwrite_a=overwrite)
        if info:
            packed[...] = np.nan
        return packed, pivots

    return factor


@array_funcify.register(PivotToPermutations)
def pivots_to_permutation(op, node, xp):
    """Compute the permutation that a list of row exchanges amounts to, or its inverse."""

    def convert(pivots):
        rows = permutation(pivots)
        return xp.asarray(rows if op.inverse else np.argsort(rows), dtype="int64")

    return convert


def permutation(pivots):
    """Return the rows' original numbers after exchanging row i with ``pivots[i]``, for i = 0, 1, ..."""
    rows = list(range(len(pivots)))
    for i, pivot in enumerate(pivots.tolist()):
        rows[i], rows[pivot] = rows[pivot], rows[i]
    return np.array(rows, dtype="int64")


@array_funcify.register(QR)
def qr(op, node, xp):
    """Compute orthogonal ``Q`` and triangular ``R``, or LAPACK's reflectors; with column pivots if asked."""
    mode, dtype = QR_MODES.get(op.mode), work_dtype(node)

    def batched(x):
        return tuple(xp.linalg.qr(x.astype(dtype, copy=False), mode=mode))

    if xp is not np:
        return HostCall(node, xp) if mode is None or op.pivoting else in_batches(batched)
    factor = _scipy_qr(op, dtype)
    if mode is not None and not op.pivoting:
        factor.batched = batched
    return factor


def _scipy_qr(op, dtype):
    """Return a function that computes QR by SciPy, in any mode, with or without pivots.

    It returns the factors as one flat tuple, or an array if there is only one.
    """
    function = scipy_linalg(np).qr

    def factor(x):
        first, *rest = function(
            x.astype(dtype, copy=False),
            overwrite_a=op.overwrite_a,
            mode=op.mode,
            pivoting=op.pivoting,
            check_finite=False,
        )
        factors = (*first, *rest) if op.mode == "raw" else (first, *rest)
        return factors if len(factors) > 1 else factors[0]

    return factor
