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
@array_funcify.register(Eigvalsh)
def eigh(op, node, xp):
    """Eigenvalues, and eigenvectors, of a Hermitian matrix, with respect to a second one if given."""
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
