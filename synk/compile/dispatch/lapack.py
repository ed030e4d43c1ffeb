"""Helpers of the entries for linear algebra: they find routines and dtypes, and check inputs and failures.

SciPy's linear algebra takes longer to import than all of synk; it is imported when a graph first needs it.
"""

from types import ModuleType

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.dtype_utils import linalg_output_dtype

from synk.compile.array_modules import array_module


def scipy_linalg(xp: ModuleType) -> ModuleType:
    """Return ``scipy.linalg``, or the module that another array module has in its place."""
    return array_module(xp).scipy_module("linalg")


def lapack(name: str, dtype: np.dtype):
    """Return the LAPACK routine ``name`` for ``dtype``; host only."""
    return scipy_linalg(np).get_lapack_funcs(name, dtype=dtype)


def work_dtype(node: Apply) -> np.dtype:
    """Return the dtype in which LAPACK computes ``node``: float32, float64, complex64 or complex128."""
    return np.dtype(linalg_output_dtype(*[variable.type.dtype for variable in node.inputs]))


def as_declared(result, variable):
    """Convert ``result`` to the dtype of ``variable``, unless that would change more than its precision.

    Some Ops declare integers for the solution of a system of integers, or real eigenvectors of a complex
    matrix; then the values are kept, in the dtype in which they were computed.
    """
    dtype = np.dtype(variable.type.dtype)
    if not np.can_cast(result.dtype, dtype, "same_kind"):
        return result
    return result.astype(dtype, copy=False)


def raising(xp: ModuleType, function):
    """Return ``function`` of ``xp.linalg`` in a form that raises LinAlgError where it fails."""
    return array_module(xp).raising(function)


def in_batches(function):
    """Mark an implementation that also takes whole batches, along leading axes.

    Blockwise calls ``implementation.batched``, if there is one, once for the batch instead of the
    implementation once for each matrix. If that raises LinAlgError it computes matrix by matrix after all, so
    that the other matrices have results.
    """
    function.batched = function
    return function


def check_square(a) -> None:
    """Raise ValueError unless ``a`` is a square matrix."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"expected a square matrix, got one of shape {a.shape}")


def check_rows(a, b) -> None:
    """Raise ValueError unless ``a x = b`` is a square system."""
    check_square(a)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"a matrix of shape {a.shape} and a right-hand side of shape {b.shape} do not fit")


def adjoint(xp: ModuleType, x):
    """Return the conjugate transpose of a matrix, or of each matrix of a batch."""
    return xp.conj(xp.swapaxes(x, -1, -2))
