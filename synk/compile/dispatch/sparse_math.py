"""Entries for sums, elementwise arithmetic, comparisons and products of sparse matrices.

A product with an array, and a structured sum, is computed where a value is stored and nowhere else: a zero
that is not stored stays zero, even where the array holds an infinity or NaN.

PyTensor 3.3 renamed the classes of most Ops, but not their instances, hence ``type(add_s_s)``.
"""

from pytensor.sparse.basic import ColScaleCSC, RowScaleCSC
from pytensor.sparse.math import (
    Dot,
    SamplingDot,
    SpSum,
    StructuredDot,
    StructuredDotGradCSC,
    StructuredDotGradCSR,
    TrueDot,
    Usmm,
    add_s_d,
    add_s_s,
    add_s_s_data,
    equal_s_d,
    equal_s_s,
    mul_s_d,
    mul_s_s,
    mul_s_v,
    structured_add_s_v,
)

from synk.compile.dispatch.sparse_values import (
    array_sparse,
    as_vector,
    check_length,
    check_same_shape,
    is_sparse,
    matrix_class,
    owners,
    positions,
)


@array_sparse(SpSum)
def total(op, node, xp):
    """Compute the sum over one axis or both."""
    dtype = node.outputs[0].type.dtype
    if op.axis is None:
        return lambda x: xp.asarray(x.sum(), dtype=dtype)
    return lambda x: as_vector(x.sum(axis=op.axis), dtype, xp)


@array_sparse(type(add_s_s), type(mul_s_s))
def combine(op, node, xp):
    """Return a function that adds two sparse matrices, or multiplies them element by element.

    Its result has the format and the dtype of the node's output.
    """
    adds = op == add_s_s
    format, dtype = node.outputs[0].type.format, node.outputs[0].type.dtype

    def compute(x, y):
        check_same_shape(x, y)
        result = (x + y if adds else x.multiply(y)).asformat(format)
        return result if result.dtype == dtype else result.astype(dtype)

    return compute


@array_sparse(type(add_s_s_data))
def add_data(op, node, xp):
    """Compute the sum of two matrices that store values at the same positions, in the same order."""

    def add(x, y):
        check_same_shape(x, y)
        check_same_shape(x.data, y.data)
        result = x.copy()
        result.data += y.data
        return result

    return add


@array_sparse(type(add_s_d))
def add_dense(op, node, xp):
    """Compute the sum of a matrix and an array, which is an array."""
    dtype = node.outputs[0].type.dtype

    def add(x, y):
        check_same_shape(x, y)
        result = x.toarray().astype(dtype, copy=False)
        result += y
        return result

    return add


@array_sparse(type(structured_add_s_v))
def add_to_stored(op, node, xp):
    """Add a vector to each row, where a value other than zero is stored."""

    def add(x, y):
        check_length(y, x.shape[1])
        result = x.copy()
        result.sum_duplicates()
        result.data += xp.where(result.data != 0, y[positions(result)[1]], 0)
        return result

    return add


@array_sparse(type(mul_s_d))
def multiply_dense(op, node, xp):
    """Multiply a matrix by an array of its shape, or by a scalar."""
    dtype = node.outputs[0].type.dtype

    def multiply(x, y):
        result = x.astype(dtype)
        if y.ndim == 2:
            check_same_shape(x, y)
            y = y[positions(result)]
        result.data *= y
        return result

    return multiply


@array_sparse(type(mul_s_v), ColScaleCSC, RowScaleCSC)
def scale(op, node, xp):
    """Multiply each column, or each row, by an element of a vector."""
    axis = 0 if isinstance(op, RowScaleCSC) else 1

    def multiply(x, factors):
        check_length(factors, x.shape[axis])
        result = x.copy()
        result.data *= factors[positions(result)[axis]]
        return result

    return multiply


@array_sparse(type(equal_s_s).__bases__[0], type(equal_s_d).__bases__[0])
def compare(op, node, xp):
    """Compare two matrices, which gives a matrix of ones, or a matrix and an array, which gives an array."""
    kind = node.outputs[0].type

    def compute(x, y):
        check_same_shape(x, y)
        if is_sparse(node.outputs[0]):
            return op.comparison(x, y).astype(kind.dtype).asformat(kind.format)
        return op.comparison(x.toarray(), y).astype(kind.dtype)

    return compute


CHUNK = 1 << 20  # elements of the rows gathered at a time by `row_products`


@array_sparse(TrueDot, StructuredDot)
def structured_dot(op, node, xp):
    """Compute ``x @ y`` with a sparse ``x``: a matrix, or an array where the Op says so."""
    output = node.outputs[0]
    matrix = matrix_class(xp, output.type.format) if is_sparse(output) else None
    dtype = output.type.dtype

    def product(x, y):
        result = x @ y
        if matrix is not None:
            result = matrix(result)
        return result if result.dtype == dtype else result.astype(dtype)

    return product


@array_sparse(Dot)
def dot(op, node, xp):
    """Compute ``x @ y`` as an array."""
    return dense_product(*node.inputs, node.outputs[0].type.dtype)


@array_sparse(Usmm)
def scaled_dot(op, node, xp):
    """Compute ``alpha * (x @ y) + z`` as an array."""
    _, x, y, _ = node.inputs
    product = dense_product(x, y, node.outputs[0].type.dtype)

    def compute(alpha, x, y, z):
        result = product(x, y)
        result *= alpha
        result += z
        return result

    return compute


def dense_product(x, y, dtype: str):
    """Return a function that computes ``x @ y`` as an array; one of the two variables or both are sparse."""
    both, first = is_sparse(x) and is_sparse(y), is_sparse(x)

    def product(x, y):
        result = x @ y if first else (y.T @ x.T).T
        return (result.toarray() if both else result).astype(dtype, copy=False)

    return product


@array_sparse(StructuredDotGradCSR, StructuredDotGradCSC)
def structured_dot_gradient(op, node, xp):
    """Compute the gradient of ``a @ b`` by the stored values of ``a``: ``g @ b.T`` at their positions."""
    by_rows, dtype = isinstance(op, StructuredDotGradCSR), node.outputs[0].type.dtype

    def gradient(indices, indptr, b, g):
        owner = owners(indptr, len(indices), xp)
        row, column = (owner, indices) if by_rows else (indices, owner)
        return row_products(g, b, row, column, dtype, xp)

    return gradient


@array_sparse(SamplingDot)
def sampling_dot(op, node, xp):
    """Compute ``p * (x @ y.T)`` where ``p`` stores a value."""

    def sample(x, y, p):
        result = p.copy()
        row, column = positions(result)
        result.data *= row_products(x, y, row, column, xp.result_type(x, y), xp)
        return result

    return sample


def row_products(x, y, rows, columns, dtype, xp):
    """Return the vector of ``x[rows[k]] @ y[columns[k]]``, for arrays or matrices with equal row lengths."""
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"rows of {x.shape[1]} and of {y.shape[1]} values cannot be multiplied")
    result = xp.empty(len(rows), dtype=dtype)
    # All pairs at once would take far more memory than the matrices.
    step = max(1, CHUNK // max(1, x.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        result[part] = _paired(x[rows[part]], y[columns[part]], dtype, xp)
    return result


def _paired(left, right, dtype, xp):
    if hasattr(right, "multiply"):
        left, right = right, left
    if hasattr(left, "multiply"):
        return as_vector(left.multiply(right).sum(axis=1), dtype, xp)
    return xp.einsum("ij,ij->i", left, right)
