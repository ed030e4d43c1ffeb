"""Entries for systems of equations ``a x = b`` with a square matrix, whose structure the Op may promise.

A singular matrix gives NaN; for an ill-conditioned one the inexact result is returned, without a warning. The
matrix may come as its Cholesky factor, or, if it is tridiagonal, as factors that LAPACK makes and uses on the
host.

    host: structure -> SOLVERS -> LAPACK's routine for it
    device: structure -> the matrix written out in full -> the device's general solver
"""

from functools import partial

import numpy as np
from pytensor.tensor.linalg.solvers.general import Solve
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, SolveLUFactorTridiagonal

from synk.compile.dispatch.lapack import adjoint, check_rows, lapack, raising, scipy_linalg, work_dtype
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify


@array_funcify.register(Solve)
def solve(op, node, xp):
    """Compute the solution for one right-hand side, or for several side by side."""
    dtype = work_dtype(node)
    function = SOLVERS[op.assume_a](op, dtype) if xp is np else _on_device(op, xp)

    def solution(a, b):
        check_rows(a, b)
        if not b.size:
            return xp.empty(b.shape, dtype)
        columns = b.astype(dtype, copy=False).reshape(len(b), -1)
        try:
            x = function(a.astype(dtype, copy=False), columns)
        except np.linalg.LinAlgError:
            x = xp.full(columns.shape, np.nan, dtype)
        return x.reshape(b.shape)

    if op.assume_a == "gen":
        solution.batched = partial(_batched, xp, raising(xp, xp.linalg.solve), op.b_ndim, dtype)
    return solution


def _batched(xp, function, b_ndim, dtype, a, b):
    """Solve a batch of general systems; a single matrix or right side broadcasts over the batch."""
    check_rows(np.broadcast_to(0, a.shape[-2:]), np.broadcast_to(0, b.shape[-b_ndim:]))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-b_ndim])
    a = xp.broadcast_to(a, (*batch, *a.shape[-2:])).astype(dtype, copy=False)
    b = xp.broadcast_to(b, (*batch, *b.shape[-b_ndim:])).astype(dtype, copy=False)
    return function(a, b) if b_ndim == 2 else function(a, b[..., None])[..., 0]


def _general(op, dtype):
    """Return a function that solves with a general matrix, by LU factors with row exchanges."""
    getrf, getrs = lapack("getrf", dtype), lapack("getrs", dtype)

    def function(a, b):
        # In memory, C order is the transpose of Fortran order.
        flip = a.flags.c_contiguous
        packed, pivots, info = getrf(a.T if flip else a, overwrite_a=op.overwrite_a)
        _check(info)
        return getrs(packed, pivots, b, trans=int(flip), overwrite_b=op.overwrite_b)[0]

    return function


def _symmetric(name, op, dtype):
    """Return a function that solves with a symmetric or, if ``name`` is "hesv", Hermitian matrix.

    It reads one triangle of the matrix.
    """
    routine, workspace = lapack(name, dtype), lapack(f"{name}_lwork", dtype)

    def function(a, b):
        a, lower = _lapack_order(a, op.lower, hermitian=name == "hesv")
        lwork = int(workspace(len(a), lower=lower)[0].real)
        *_, x, info = routine(
            a, b, lwork=lwork, lower=lower, overwrite_a=op.overwrite_a, overwrite_b=op.overwrite_b
        )
        _check(info)
        return x

    return function


def _hermitian(op, dtype):
    """Return a function that solves with a Hermitian matrix; it reads one triangle."""
    return _symmetric("hesv" if dtype.kind == "c" else "sysv", op, dtype)


def _definite(op, dtype):
    """Return a function that solves with a Hermitian positive definite matrix; it reads one triangle."""
    posv = lapack("posv", dtype)

    def function(a, b):
        a, lower = _lapack_order(a, op.lower, hermitian=dtype.kind == "c")
        _, x, info = posv(a, b, lower=lower, overwrite_a=op.overwrite_a, overwrite_b=op.overwrite_b)
        _check(info)
        return x

    return function


def _tridiagonal(op, dtype):
    """Return a function that solves with a tridiagonal matrix; it reads the three diagonals only."""
    gtsv, general = lapack("gtsv", dtype), _general(op, dtype)

    def function(a, b):
        if len(a) == 1:  # without off-diagonals, which the routine insists on
            return general(a, b)
        diagonals = [np.diagonal(a, offset) for offset in (-1, 0, 1)]
        *_, x, info = gtsv(*diagonals, b, overwrite_b=op.overwrite_b)
        _check(info)
        return x

    return function


def _banded(op, dtype):
    """Return a function that solves with a banded matrix; SciPy finds out which diagonals it has."""
    # Not told to overwrite: SciPy 1.17 returns a read-only array then.
    return partial(scipy_linalg(np).solve, assume_a="banded", check_finite=False)


SOLVERS = {
    "gen": _general,
    "sym": partial(_symmetric, "sysv"),
    "her": _hermitian,
    "pos": _definite,
    "tridiagonal": _tridiagonal,
    "banded": _banded,
}


def _lapack_order(a, lower, hermitian):
    """Return ``a`` or its transpose, whichever is in Fortran order, and which triangle of it to read."""
    flip = a.flags.c_contiguous and not hermitian
    return (a.T, not lower) if flip else (a, lower)


def _check(info):
    if info:
        raise np.linalg.LinAlgError("singular, or not positive definite")


def _on_device(op, xp):
    """Return a function that solves on the device, by the general solver or by Cholesky factors."""
    general, cholesky = raising(xp, xp.linalg.solve), raising(xp, xp.linalg.cholesky)
    triangular = scipy_linalg(xp).solve_triangular

    def function(a, b):
        a = written_out(xp, a, op.assume_a, op.lower)
        if op.assume_a != "pos":
            return general(a, b)
        factor = cholesky(a)
        return triangular(factor, triangular(factor, b, lower=True), lower=True, trans="C")

    return function


def written_out(xp, a, structure, lower):
    """Return a matrix with all its elements, of which the Op's structure reads some only."""
    if structure == "tridiagonal":
        return xp.triu(xp.tril(a, 1), -1)
    if structure in ("gen", "banded"):
        return a
    half = xp.tril(a) if lower else xp.triu(a)
    other = half.T if structure == "sym" else adjoint(xp, half)
    return half + other - xp.diag(xp.diagonal(half))


@array_funcify.register(LUFactorTridiagonal)
def tridiagonal_lu(op, node, xp):
    """Compute multipliers, three diagonals of ``U`` and the row that each row was exchanged with."""
    if xp is not np:
        return HostCall(node, xp)
    gttrf = lapack("gttrf", np.dtype(node.outputs[0].type.dtype))
    keywords = {name: getattr(op, name) for name in ("overwrite_dl", "overwrite_d", "overwrite_du")}

    def factor(lower, diagonal, upper):
        return gttrf(lower, diagonal, upper, **keywords)[:-1]

    return factor


@array_funcify.register(SolveLUFactorTridiagonal)
def tridiagonal_solve(op, node, xp):
    """Compute the solution of ``a x = b``, or of ``a^T x = b``, from the factors of ``a``."""
    if xp is not np:
        return HostCall(node, xp)
    gttrs = lapack("gttrs", np.dtype(node.outputs[0].type.dtype))
    trans = "T" if op.transposed else "N"

    def solution(*factors_and_b):
        return gttrs(*factors_and_b, overwrite_b=op.overwrite_b, trans=trans)[0]

    return solution


@array_funcify.register(SolveTriangular)
def solve_triangular(op, node, xp):
    """Compute the solution for a triangular matrix, whose other triangle is not read."""
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
    """Return a function that solves with a triangular matrix by LAPACK."""
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
    """Compute the solution for a positive definite matrix, whose Cholesky factor is given."""
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
    """Return a function that solves with a Cholesky factor by LAPACK."""
    potrs = lapack("potrs", dtype)

    def solution(factor, b):
        check_rows(factor, b)
        if not b.size:
            return np.empty(b.shape, dtype)
        return potrs(factor, b, lower=op.lower, overwrite_b=op.overwrite_b)[0]

    return solution
