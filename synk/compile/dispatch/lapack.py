"""Helpers that the entries for linear algebra share: where routines are, their dtypes, what failure means.

SciPy's linear algebra takes longer to import than all of synk; it is imported when a graph first needs it.
"""

from importlib import import_module
from types import ModuleType

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor.linalg.dtype_utils import linalg_output_dtype


def scipy_linalg(xp: ModuleType) -> ModuleType:
    """Return the module that is to ``xp`` what ``scipy.linalg`` is to NumPy; CuPy's has far less in it."""
    return import_module("scipy.linalg" if xp is np else "cupyx.scipy.linalg")


def lapack(name: str, dtype: np.dtype):
    """Return the LAPACK routine ``name`` for ``dtype``; host only."""
    return scipy_linalg(np).get_lapack_funcs(name, dtype=dtype)


def work_dtype(node: Apply) -> np.dtype:
    """Return the dtype in which LAPACK computes ``node``: one of its four."""
    return np.dtype(linalg_output_dtype(*[variable.type.dtype for variable in node.inputs]))


def as_declared(result, variable):
    """Convert ``result`` to the dtype of ``variable`` where that loses precision at most.

    Some Ops declare integers for the solution of a system of integers, and real eigenvectors of a
    complex matrix; there the values count.
    """
    dtype = np.dtype(variable.type.dtype)
    if not np.can_cast(result.dtype, dtype, "same_kind"):
        return result
    return result.astype(dtype, copy=False)


def raising(xp: ModuleType, function):
    """Return ``function`` of ``xp.linalg`` so that it raises LinAlgError where it fails, as NumPy's do.

    CuPy returns invalid numbers unless it is told to look, which waits for the device.
    """
    if xp is np:
        return function
    errstate = import_module("cupyx").errstate

    def call(*inputs, **keywords):
        with errstate(linalg="raise"):
            return function(*inputs, **keywords)

    return call


def in_batches(function):
    """Mark an implementation that takes whole batches too, along leading axes.

    Blockwise calls what it finds under ``implementation.batched`` once instead of the implementation once
    a matrix. If that raises LinAlgError it does them one by one after all: a bad matrix spoils no other.
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
    """Return the conjugate transpose of a matrix or of each of a batch."""
    return xp.conj(xp.swapaxes(x, -1, -2))
