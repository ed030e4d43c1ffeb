"""Entries for sparse matrices: made of parts, taken apart, converted, joined and indexed.

Importing this module registers the entries of all sparse Ops, those in `sparse_math` too. It imports
``pytensor.sparse``, so `synk.compile.dispatch` imports it when the first sparse Op is met.
"""

from pytensor.sparse.basic import (
    CSM,
    Cast,
    ConstructSparseFromList,
    CSMGrad,
    CSMProperties,
    DenseFromSparse,
    Diag,
    EnsureSortedIndices,
    GetItem2d,
    GetItem2Lists,
    GetItem2ListsGrad,
    GetItemList,
    GetItemListGrad,
    GetItemScalar,
    HStack,
    Remove0,
    SparseFromDense,
    Transpose,
    VStack,
)
from pytensor.sparse.linalg import SparseBlockDiagonal

from synk.compile.dispatch import sparse_math  # noqa: F401  (registers entries)
from synk.compile.dispatch.sparse_values import (
    array_sparse,
    as_vector,
    check_same_shape,
    matrix_class,
    owners,
    positions,
    sparse_module,
)


@array_sparse(CSMProperties)
def properties(op, node, xp):
    """Return the values, indices and pointers of a matrix, which are views of it, and its shape."""

    def parts(x):
        indices, indptr = [xp.asarray(part, dtype="int32") for part in (x.indices, x.indptr)]
        return x.data, indices, indptr, xp.array(x.shape, dtype="int32")

    return parts


@array_sparse(CSM)
def matrix_of_parts(op, node, xp):
    """Make a matrix around the given values, as a view of them, and copies of indices and pointers."""
    matrix = matrix_class(xp, op.format)

    def build(data, indices, indptr, shape):
        if len(shape) != 2 or data.shape != indices.shape:
            raise ValueError(
                f"{len(data)} values with {len(indices)} indices and {len(shape)} lengths make no matrix; "
                "give an index for each value, and two lengths"
            )
        return matrix((data, indices.copy(), indptr.copy()), shape=tuple(shape.tolist()))

    return build


@array_sparse(CSMGrad)
def gradient_of_values(op, node, xp):
    """Compute the gradient with respect to a matrix's stored values, from the gradient of the matrix."""
    matrix, dtype = matrix_class(xp, "csr"), node.outputs[0].type.dtype

    def sample(x_data, x_indices, x_indptr, x_shape, g_data, g_indices, g_indptr, g_shape):
        rows, columns = x_shape.tolist()
        length = len(x_indptr) - 1
        # The parts of a CSC matrix are those of its transpose in CSR.
        gradient = matrix((g_data, g_indices, g_indptr), shape=(length, columns if length == rows else rows))
        return as_vector(gradient[owners(x_indptr, len(x_indices), xp), x_indices], dtype, xp)

    return sample


@array_sparse(ConstructSparseFromList)
def matrix_of_rows(op, node, xp):
    """Make a matrix with the given rows at the given places; rows at the same place add up."""
    matrix, dtype = matrix_class(xp, "csc"), node.outputs[0].type.dtype

    def construct(shape, values, places):
        shape = tuple(shape.tolist())
        if len(values) != len(places):
            raise ValueError(f"{len(values)} rows for {len(places)} places; give a place for each row")
        indptr = xp.arange(values.shape[1] + 1) * len(values)
        indices = xp.tile(from_front(places, shape[0], xp), values.shape[1])
        return matrix((values.T.flatten().astype(dtype, copy=False), indices, indptr), shape=shape)

    return construct


@array_sparse(EnsureSortedIndices, Remove0)
def clean(op, node, xp):
    """Return the matrix with the indices of each row or column in order, or without stored zeros."""
    method = "sort_indices" if isinstance(op, EnsureSortedIndices) else "eliminate_zeros"
    # PyTensor 3.0 calls the matrix sorted in place a view of the input, which may be read after it.
    inplace = bool(op.destroy_map)

    def change(x):
        result = x if inplace else x.copy()
        getattr(result, method)()
        return result

    return change


@array_sparse(HStack, VStack)
def stack(op, node, xp):
    """Join matrices side by side, or one above the other."""
    module = sparse_module(xp)
    function = module.hstack if isinstance(op, HStack) else module.vstack
    return lambda *blocks: function(blocks, format=op.format, dtype=op.dtype)


@array_sparse(SparseBlockDiagonal)
def block_diagonal(op, node, xp):
    """Place matrices and arrays along the diagonal of a matrix."""
    module, dtype = sparse_module(xp), node.outputs[0].type.dtype

    def join(*blocks):
        grid = [[None] * len(blocks) for _ in blocks]
        for i, block in enumerate(blocks):
            grid[i][i] = module.coo_matrix(block)
        return module.bmat(grid, format=op.format, dtype=dtype)

    return join


@array_sparse(GetItemListGrad)
def place_rows(op, node, xp):
    """Make a matrix like ``x`` with rows ``values`` at some places; of equal places the last counts."""
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
    """Return the values at some positions, as a vector."""
    dtype = node.outputs[0].type.dtype
    return lambda x, row, column: as_vector(x[row, column], dtype, xp)


@array_sparse(GetItem2ListsGrad)
def place_elements(op, node, xp):
    """Make a matrix like ``x`` with values at some positions; of equal positions the last counts."""
    build = _builder(node, xp)

    def place(x, row, column, values):
        check_same_shape(row, column)
        check_same_shape(row, values)
        row, column = from_front(row, x.shape[0], xp), from_front(column, x.shape[1], xp)
        key = row.astype("int64") * x.shape[1] + column
        return build(xp.where(is_last(key, xp), values, 0), row, column, x.shape)

    return place


def _builder(node, xp):
    """Return a function that makes the node's output from values and their positions."""
    matrix, (output,) = sparse_module(xp).coo_matrix, node.outputs
    format, dtype = output.type.format, output.type.dtype

    def build(data, row, column, shape):
        entries = matrix((data.astype(dtype, copy=False), (row, column)), shape=shape)
        return entries.asformat(format)  # adds up what is at one position

    return build


@array_sparse(GetItem2d)
def slices(op, node, xp):
    """Return a slice of the rows and one of the columns."""

    def cut(x, *ends):
        ends = [None if end is None else int(end) for end in ends]
        return x[slice(*ends[:3]), slice(*ends[3:])]

    return cut


@array_sparse(GetItemScalar)
def element(op, node, xp):
    """Return the value at one position."""
    dtype = node.outputs[0].type.dtype
    return lambda x, row, column: xp.asarray(x[int(row), int(column)], dtype=dtype)


@array_sparse(Diag)
def diagonal(op, node, xp):
    """Return the diagonal of a square matrix."""

    def take(x):
        if x.shape[0] != x.shape[1]:
            raise ValueError(f"Diag is for square matrices; this one is of shape {x.shape}")
        return x.diagonal()

    return take


def from_front(index, length: int, xp):
    """Return ``index`` with negative entries, which count from the end, replaced by those from the front.

    Raises IndexError unless ``-length <= entry < length`` for all entries: SciPy would write outside the
    matrix.
    """
    index = index.astype("int64")
    if ((index < -length) | (index >= length)).any():
        raise IndexError(f"index {index.tolist()} is out of bounds for an axis of length {length}")
    return xp.where(index < 0, index + length, index)


def is_last(keys, xp):
    """Return for each of ``keys``, a vector of integers, whether no later one equals it."""
    _, first = xp.unique(keys[::-1], return_index=True)
    last = xp.zeros(len(keys), dtype=bool)
    last[len(keys) - 1 - first] = True
    return last


ENTRIES = {
    Cast: lambda op, node, xp: lambda x: x.astype(op.out_type),
    DenseFromSparse: lambda op, node, xp: lambda x: x.toarray(),
    SparseFromDense: lambda op, node, xp: matrix_class(xp, op.format),
    Transpose: lambda op, node, xp: lambda x: x.T,  # a view, in the other format
    GetItemList: lambda op, node, xp: lambda x, rows: x[rows],
}

for op_class, entry in ENTRIES.items():
    array_sparse(op_class)(entry)
