"""Entries for eigenvalues, singular values and Schur forms, and for Sylvester's equation by Schur forms.

Schur forms are LAPACK's, on the host, and NaN where the iteration fails.
"""

import numpy as np
from pytensor.tensor.linalg.decomposition.eigen import Eig, Eigh, Eigvalsh
from pytensor.tensor.linalg.decomposition.schur import QZ, Schur
from pytensor.tensor.linalg.decomposition.svd import SVD
from pytensor.tensor.linalg.solvers.linear_control import TRSYL

from synk.compile.dispatch.lapack import (
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


@array_funcify.register(SVD)
def svd(op, node, xp):
    """Compute singular values, between the two orthogonal factors if those are asked for."""
    function, dtype = raising(xp, xp.linalg.svd), work_dtype(node)

    def factor(x):
        results = function(x.astype(dtype, copy=False), op.full_matrices, op.compute_uv)
        return tuple(results) if op.compute_uv else results

    return in_batches(factor)


@array_funcify.register(Eig)
def eig(op, node, xp):
    """Compute eigenvalues and right eigenvectors of any square matrix, which are always complex."""
    if not hasattr(xp.linalg, "eig"):
        return HostCall(node, xp)
    function, dtype = raising(xp, xp.linalg.eig), work_dtype(node)

    def values_and_vectors(x):
        results = function(x.astype(dtype, copy=False))
        return tuple([as_declared(r, variable) for r, variable in zip(results, node.outputs, strict=True)])

    return in_batches(values_and_vectors)


@array_funcify.register(Eigh)
@array_funcify.register(Eigvalsh)
def eigh(op, node, xp):
    """Compute eigenvalues, and eigenvectors, of a Hermitian matrix, or of a pair of matrices."""
    dtype, generalized, alone = work_dtype(node), len(node.inputs) == 2, isinstance(op, Eigvalsh)
    if xp is not np and generalized:
        return HostCall(node, xp)
    name = "eigvalsh" if alone else "eigh"
    function = raising(xp, getattr(xp.linalg, name))

    def batched(a):
        results = function(a.astype(dtype, copy=False), "L" if op.lower else "U")
        return as_declared(results, node.outputs[0]) if alone else tuple(results)

    if xp is not np:
        return in_batches(batched)
    keywords = {} if generalized or alone else {"driver": op.driver}
    factor = _hermitian(getattr(scipy_linalg(xp), name), op, keywords)
    # NumPy's eigenvectors may have other signs than those of SciPy, which PyTensor calls.
    if alone and not generalized:
        factor.batched = batched
    return factor


def _hermitian(function, op, keywords):
    """Return a function that calls SciPy's ``function`` with one or two Hermitian matrices.

    It may overwrite the matrices if ``op`` says so. SciPy raises an error for NaN, from which LAPACK may not
    return.
    """

    def factor(*matrices):
        # LAPACK destroys Fortran order only; in memory, that is the transpose of C order.
        flip = op.overwrite_a and matrices[0].flags.c_contiguous and matrices[0].dtype.kind == "f"
        return function(
            *[matrix.T if flip else matrix for matrix in matrices],
            lower=op.lower != flip,
            overwrite_a=op.overwrite_a,
            overwrite_b=op.overwrite_b,
            **keywords,
        )

    return factor


@array_funcify.register(Schur)
def schur(op, node, xp):
    """Compute ``A = Z T Z^H`` with quasi-triangular ``T`` and unitary ``Z``; eigenvalues sorted if asked."""
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
    """Compute ``A = Q S Z^H`` and ``B = Q T Z^H``; if asked, with the eigenvalues as ratios alpha / beta."""
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
    """Select no eigenvalue, so that they stay in the order of LAPACK."""


def _reorder(wanted, s, t, q, z):
    """Move the wanted eigenvalues of a QZ decomposition to the upper left."""
    tgsen = lapack("tgsen", s.dtype)
    lwork = 4 * len(s) + 16 if s.dtype.kind == "f" else 1
    s, t, *ratio, q, z, _, _, _, _, info = tgsen(wanted, s, t, q, z, ijob=0, lwork=lwork, liwork=1)
    return s, t, ratio, q, z, info


def _eigenvalues(ratio):
    """Return alpha and beta; for real matrices LAPACK returns real and imaginary part of alpha separately."""
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
    """Compute ``x`` with ``a x + x b = c``, for ``a`` and ``b`` in Schur form."""
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
