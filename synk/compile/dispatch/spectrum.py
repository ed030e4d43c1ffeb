"""Eigenvalues, singular values and Schur forms."""

import numpy as np
from pytensor.tensor.linalg.decomposition.eigen import Eig, Eigh, Eigvalsh
from pytensor.tensor.linalg.decomposition.svd import SVD

from synk.compile.dispatch.lapack import as_declared, in_batches, raising, scipy_linalg, work_dtype
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify


@array_funcify.register(SVD)
def svd(op, node, xp):
    """Singular values, between the two orthogonal factors if those are asked for."""
    function, dtype = raising(xp, xp.linalg.svd), work_dtype(node)

    def factor(x):
        results = function(x.astype(dtype, copy=False), op.full_matrices, op.compute_uv)
        return tuple(results) if op.compute_uv else results

    return in_batches(factor)


@array_funcify.register(Eig)
def eig(op, node, xp):
    """Eigenvalues and right eigenvectors of any square matrix; always complex."""
    if not hasattr(xp.linalg, "eig"):
        return HostCall(node, xp)
    function, dtype = raising(xp, xp.linalg.eig), work_dtype(node)

    def values_and_vectors(x):
        results = function(x.astype(dtype, copy=False))
        return tuple([as_declared(r, variable) for r, variable in zip(results, node.outputs, strict=True)])

    return in_batches(values_and_vectors)


@array_funcify.register(Eigh)
def eigh(op, node, xp):
    """Eigenvalues and eigenvectors of a Hermitian matrix, with respect to a second one if given."""
    dtype, generalized = work_dtype(node), len(node.inputs) == 2
    if xp is not np and generalized:
        return HostCall(node, xp)

    def batched(a):
        return tuple(function(a.astype(dtype, copy=False), "L" if op.lower else "U"))

    function = raising(xp, xp.linalg.eigh)
    if xp is not np:
        return in_batches(batched)
    # Not in batches: NumPy's eigenvectors may have other signs than those of SciPy, which PyTensor calls.
    return _hermitian(scipy_linalg(xp).eigh, op, {} if generalized else {"driver": op.driver})


@array_funcify.register(Eigvalsh)
def eigvalsh(op, node, xp):
    """Eigenvalues of a Hermitian matrix, with respect to a second one if given."""
    dtype, generalized = work_dtype(node), len(node.inputs) == 2
    if xp is not np and generalized:
        return HostCall(node, xp)

    def batched(a):
        return as_declared(function(a.astype(dtype, copy=False), "L" if op.lower else "U"), node.outputs[0])

    function = raising(xp, xp.linalg.eigvalsh)
    if xp is not np:
        return in_batches(batched)
    factor = _hermitian(scipy_linalg(xp).eigvalsh, op, {})
    if not generalized:
        factor.batched = batched
    return factor


def _hermitian(function, op, keywords):
    """Call SciPy's ``function`` of one or two matrices, which it may destroy where ``op`` says so.

    It refuses NaN, from which LAPACK may not return.
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
