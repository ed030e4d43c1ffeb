"""Helpers that the entries of sparse matrices share.

A sparse value is a matrix of ``scipy.sparse``, or of its twin for a device's arrays, in CSR or CSC format:
``data`` and ``indices`` of the stored values, and ``indptr``, where each row (CSR) or column (CSC) begins.
Stored values may be zeros, unsorted or repeated; repeated ones stand for their sum.
"""

from collections.abc import Callable
from types import ModuleType

from pytensor.graph.basic import Apply, Variable
from pytensor.sparse.type import SparseTensorType

from synk.compile.array_modules import array_module
from synk.compile.host_call import HostCall
from synk.compile.tables import array_funcify


def array_sparse(*op_classes: type) -> Callable[[Callable], Callable]:
    """Return a decorator that registers an entry for sparse Ops.

    If ``xp`` has no sparse matrices of a node's dtypes, the Op's own implementation runs instead.
    """

    def register(entry):
        def held_entry(op, node, xp):
            return entry(op, node, xp) if can_hold(xp, node) else HostCall(node, xp)

        for op_class in op_classes:
            array_funcify.register(op_class, held_entry)
        return entry

    return register


def can_hold(xp: ModuleType, node: Apply) -> bool:
    """Say whether the sparse module of ``xp`` has the dtypes of the node's sparse matrices."""
    dtypes = {variable.type.dtype for variable in [*node.inputs, *node.outputs] if is_sparse(variable)}
    held = array_module(xp).sparse_dtypes
    return held is None or dtypes <= held


def is_sparse(variable: Variable) -> bool:
    """Say whether the values of ``variable`` are sparse matrices."""
    return isinstance(variable.type, SparseTensorType)


def sparse_module(xp: ModuleType) -> ModuleType:
    """Return the module of sparse matrices that goes with ``xp``."""
    return array_module(xp).scipy_module("sparse")


def matrix_class(xp: ModuleType, format: str) -> type:
    """Return the class of matrices in ``format``, "csr" or "csc"."""
    return getattr(sparse_module(xp), f"{format}_matrix")


def positions(x):
    """Return the row and the column of every stored value, two vectors in the order of ``x.data``."""
    entries = x.tocoo(copy=False)
    return entries.row, entries.col


def owners(indptr, n_stored: int, xp: ModuleType):
    """Return for every stored value its row (CSR) or column (CSC), which ``indptr`` tells."""
    # A device cannot repeat an element a number of times that it holds itself.
    return xp.searchsorted(indptr, xp.arange(n_stored), side="right") - 1


def as_vector(x, dtype: str, xp: ModuleType):
    """Return a matrix of one row or column, which a sum or an index gives, as a vector."""
    # SciPy makes a numpy.matrix of it, but a sparse matrix where nothing is selected.
    x = x.toarray() if hasattr(x, "toarray") else x
    return xp.asarray(x, dtype=dtype).ravel()


def check_same_shape(x, y) -> None:
    """Raise ValueError unless ``x`` and ``y`` have the same shape; sparse matrices do not broadcast."""
    if x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} cannot be combined; make them equal")


def check_length(vector, length: int) -> None:
    """Raise ValueError unless ``vector`` has ``length`` elements."""
    if len(vector) != length:
        raise ValueError(f"a vector of {len(vector)} values does not fit an axis of length {length}")
