"""Sparse matrices: made of parts, taken apart, converted and joined.

Importing this module registers the entries of all sparse Ops, those of its siblings too. It imports
``pytensor.sparse``, so `synk.compile.dispatch` does it when the first sparse Op is met.
"""

from pytensor.sparse.basic import (
    CSM,
    Cast,
    ConstructSparseFromList,
    CSMGrad,
    CSMProperties,
    DenseFromSparse,
    EnsureSortedIndices,
    HStack,
    Remove0,
    SparseFromDense,
    Transpose,
    VStack,
)
from pytensor.sparse.linalg import SparseBlockDiagonal

from synk.compile.dispatch import sparse_dot, sparse_index, sparse_math
from synk.compile.dispatch.sparse_index import from_front
from synk.compile.dispatch.sparse_values import array_sparse, as_vector, matrix_class, owners, sparse_module

__all__ = ["sparse_dot", "sparse_index", "sparse_math"]


@array_sparse(CSMProperties)
def properties(op, node, xp):
    """Values, indices and pointers, which are views of the matrix, and its shape."""

    def parts(x):
        indices, indptr = [xp.asarray(part, dtype="int32") for part in (x.indices, x.indptr)]
        return x.data, indices, indptr, xp.array(x.shape, dtype="int32")

    return parts


@array_sparse(CSM)
def matrix_of_parts(op, node, xp):
    """A matrix around the given values, a view of them, with indices and pointers of its own."""
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
    """The gradient of a matrix with respect to its stored values: what it has at their positions."""
    matrix, dtype = matrix_class(xp, "csr"), node.outputs[0].type.dtype

    def sample(x_data, x_indices, x_indptr, x_shape, g_data, g_indices, g_indptr, g_shape):
        rows, columns = x_shape.tolist()
        length = len(x_indptr) - 1
        # The parts of a CSC matrix are those of its transpose in CSR.
        gradient = matrix((g_data, g_indices, g_indptr), shape=(length, columns if length == rows else rows))
        return as_vector(gradient[owners(x_indptr, len(x_indices), xp), x_indices], dtype, xp)

    return sample


@array_sparse(Cast)
def cast(op, node, xp):
    """The matrix in another dtype."""
    return lambda x: x.astype(op.out_type)


@array_sparse(DenseFromSparse)
def dense(op, node, xp):
    """The matrix as an array."""
    return lambda x: x.toarray()


@array_sparse(SparseFromDense)
def sparse(op, node, xp):
    """An array as a matrix."""
    return matrix_class(xp, op.format)


@array_sparse(ConstructSparseFromList)
def matrix_of_rows(op, node, xp):
    """A matrix with the given rows at the given places; rows at the same place add up."""
    matrix, dtype = matrix_class(xp, "csc"), node.outputs[0].type.dtype

    def construct(shape, values, places):
        shape = tuple(shape.tolist())
        if len(values) != len(places):
            raise ValueError(f"{len(values)} rows for {len(places)} places; give a place for each row")
        indptr = xp.arange(values.shape[1] + 1) * len(values)
        indices = xp.tile(from_front(places, shape[0], xp), values.shape[1])
        return matrix((values.T.flatten().astype(dtype, copy=False), indices, indptr), shape=shape)

    return construct


@array_sparse(Transpose)
def transpose(op, node, xp):
    """Rows and columns exchanged: a view, in the other format."""
    return lambda x: x.T


@array_sparse(EnsureSortedIndices, Remove0)
def clean(op, node, xp):
    """The matrix with the indices of each row or column in order, or without stored zeros."""
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
    """Matrices side by side, or one above the other."""
    module = sparse_module(xp)
    function = module.hstack if isinstance(op, HStack) else module.vstack
    return lambda *blocks: function(blocks, format=op.format, dtype=op.dtype)


@array_sparse(SparseBlockDiagonal)
def block_diagonal(op, node, xp):
    """Matrices and arrays along the diagonal of a matrix."""
    module, dtype = sparse_module(xp), node.outputs[0].type.dtype

    def join(*blocks):
        grid = [[None] * len(blocks) for _ in blocks]
        for i, block in enumerate(blocks):
            grid[i][i] = module.coo_matrix(block)
        return module.bmat(grid, format=op.format, dtype=dtype)

    return join
