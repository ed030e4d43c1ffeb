"""Schur forms by LAPACK on the host: of a matrix, of a pair, and Sylvester's equation in such forms.

NaN where the iteration fails.
"""

import numpy as np
from pytensor.tensor.linalg.decomposition.schur import QZ, Schur
from pytensor.tensor.linalg.solvers.linear_control import TRSYL

from synk.compile.dispatch.lapack import check_square, lapack, scipy_linalg, work_dtype
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify


@array_funcify.register(Schur)
def schur(op, node, xp):
    """``A = Z T Z^H`` with quasi-triangular ``T`` and unitary ``Z``; wanted eigenvalues first if sorted."""
    if xp is not np:
        return HostCall(node, xp)
    dtype, function = np.dtype(node.outputs[0].type.dtype), scipy_linalg(xp).schur
    in_place = op.overwrite_a and node.inputs[0].type.dtype == dtype

    def factor(a):
        check_square(a)
        # LAPACK may not return from NaN.
        if a.size and np.isfinite(a).all():
            try:
                return function(
                    a.astype(dtype, copy=False),
                    output=op.output,
                    sort=op.sort,
                    overwrite_a=in_place,
                    check_finite=False,
                )[:2]
            except np.linalg.LinAlgError:
                pass
        return np.full(a.shape, np.nan, dtype), np.full(a.shape, np.nan, dtype)

    return factor


@array_funcify.register(QZ)
def qz(op, node, xp):
    """``A = Q S Z^H`` and ``B = Q T Z^H``; if asked, with the eigenvalues as ratios alpha / beta."""
    if xp is not np:
        return HostCall(node, xp)
    dtype = np.dtype(node.outputs[0].type.dtype)
    gges = lapack("gges", dtype)

    def factor(a, b):
        check_square(a)
        a = a.astype(dtype, order="F", copy=not op.overwrite_a)
        b = b.astype(dtype, order="F", copy=not op.overwrite_b)
        # Twice the least that LAPACK asks for: room for blocks of columns.
        lwork = 16 * len(a) + 32
        s, t, _, *ratio, q, z, _, info = gges(_nothing, a, b, lwork=lwork, overwrite_a=True, overwrite_b=True)
        if not info and op.sort is not None:
            s, t, ratio, q, z, info = _reorder(HALVES[op.sort](*_eigenvalues(ratio)), s, t, q, z)
        results = (s, t, *_eigenvalues(ratio), q, z) if op.return_eigenvalues else (s, t, q, z)
        return tuple([np.full_like(result, np.nan) for result in results]) if info else results

    return factor


def _nothing(*eigenvalue):
    """Select no eigenvalue: LAPACK's own order."""


def _reorder(wanted, s, t, q, z):
    """Move the wanted eigenvalues to the upper left."""
    tgsen = lapack("tgsen", s.dtype)
    lwork = 4 * len(s) + 16 if s.dtype.kind == "f" else 1
    s, t, *ratio, q, z, _, _, _, _, info = tgsen(wanted, s, t, q, z, ijob=0, lwork=lwork, liwork=1)
    return s, t, ratio, q, z, info


def _eigenvalues(ratio):
    """Return alpha and beta; of real matrices LAPACK gives the parts of alpha apart."""
    if len(ratio) == 2:
        return ratio
    real, imaginary, beta = ratio
    alpha = real.astype(np.result_type(real, np.complex64))
    alpha.imag = imaginary
    return alpha, beta


# The eigenvalue is alpha / beta, infinite if beta is 0.
HALVES = {
    "lhp": lambda alpha, beta: (alpha * beta.conj()).real < 0,
    "rhp": lambda alpha, beta: (alpha * beta.conj()).real > 0,
    "iuc": lambda alpha, beta: abs(alpha) < abs(beta),
    "ouc": lambda alpha, beta: abs(alpha) > abs(beta),
}


@array_funcify.register(TRSYL)
def sylvester(op, node, xp):
    """``a x + x b = c`` with ``a`` and ``b`` in Schur form."""
    if xp is not np:
        return HostCall(node, xp)
    dtype = work_dtype(node)
    trsyl = lapack("trsyl", dtype)

    def solution(a, b, c):
        if not c.size:
            return np.empty(c.shape, dtype)
        x, scale, _ = trsyl(a, b, c, overwrite_c=op.overwrite_c)
        x /= scale  # LAPACK solves for scale * c where x comes near to overflow
        return x

    return solution
