"""Rows, elements and slices of sparse matrices, and the matrices they are gradients of."""

from pytensor.sparse.basic import (
    Diag,
    GetItem2d,
    GetItem2Lists,
    GetItem2ListsGrad,
    GetItemList,
    GetItemListGrad,
    GetItemScalar,
)

from synk.compile.dispatch.sparse_values import (
    array_sparse,
    as_vector,
    check_same_shape,
    positions,
    sparse_module,
)


@array_sparse(GetItemList)
def rows(op, node, xp):
    """Some rows, as a matrix."""
    return lambda x, index: x[index]


@array_sparse(GetItemListGrad)
def place_rows(op, node, xp):
    """A matrix like ``x`` with the rows of ``values`` at some places; of equal places the last counts."""
    build = _builder(node, xp)

    def place(x, index, values):
        if values.shape != (len(index), x.shape[1]):
            raise ValueError(f"values of shape {values.shape} are no {len(index)} rows of {x.shape[1]}")
        index = from_front(index, x.shape[0], xp)
        row, column = positions(values)
        data = xp.where(is_last(index, xp)[row], values.data, 0)
        return build(data, index[row], column, x.shape)

    return place


@array_sparse(GetItem2Lists)
def elements(op, node, xp):
    """The values at some positions, as a vector."""
    dtype = node.outputs[0].type.dtype
    return lambda x, row, column: as_vector(x[row, column], dtype, xp)


@array_sparse(GetItem2ListsGrad)
def place_elements(op, node, xp):
    """A matrix like ``x`` with values at some positions; of equal positions the last counts."""
    build = _builder(node, xp)

    def place(x, row, column, values):
        check_same_shape(row, column)
        check_same_shape(row, values)
        row, column = from_front(row, x.shape[0], xp), from_front(column, x.shape[1], xp)
        key = row.astype("int64") * x.shape[1] + column
        return build(xp.where(is_last(key, xp), values, 0), row, column, x.shape)

    return place


def _builder(node, xp):
    """Return a function that makes the node's output of values and their positions."""
    matrix, (output,) = sparse_module(xp).coo_matrix, node.outputs
    format, dtype = output.type.format, output.type.dtype

    def build(data, row, column, shape):
        entries = matrix((data.astype(dtype, copy=False), (row, column)), shape=shape)
        return entries.asformat(format)  # adds up what is at one position

    return build


@array_sparse(GetItem2d)
def slices(op, node, xp):
    """A slice of the rows and one of the columns."""

    def cut(x, *ends):
        ends = [None if end is None else int(end) for end in ends]
        return x[slice(*ends[:3]), slice(*ends[3:])]

    return cut


@array_sparse(GetItemScalar)
def element(op, node, xp):
    """The value at one position."""
    dtype = node.outputs[0].type.dtype
    return lambda x, row, column: xp.asarray(x[int(row), int(column)], dtype=dtype)


@array_sparse(Diag)
def diagonal(op, node, xp):
    """The diagonal of a square matrix."""

    def take(x):
        if x.shape[0] != x.shape[1]:
            raise ValueError(f"Diag is for square matrices; this one is of shape {x.shape}")
        return x.diagonal()

    return take


def from_front(index, length: int, xp):
    """Return ``index`` with negative entries counted from the front.

    Raises
    ------
    IndexError
        If an entry is not in ``-length <= entry < length``; SciPy would write outside the matrix.
    """
    index = index.astype("int64")
    if ((index < -length) | (index >= length)).any():
        raise IndexError(f"index {index.tolist()} is out of bounds for an axis of length {length}")
    return xp.where(index < 0, index + length, index)


def is_last(keys, xp):
    """Say of each of ``keys``, a vector of integers, whether no later one equals it."""
    _, first = xp.unique(keys[::-1], return_index=True)
    last = xp.zeros(len(keys), dtype=bool)
    last[len(keys) - 1 - first] = True
    return last
