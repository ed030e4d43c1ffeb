"""Products with sparse matrices, whole or at chosen positions."""

from pytensor.sparse.math import (
    Dot,
    SamplingDot,
    StructuredDot,
    StructuredDotGradCSC,
    StructuredDotGradCSR,
    TrueDot,
    Usmm,
)

from synk.compile.dispatch.sparse_values import (
    array_sparse,
    as_vector,
    is_sparse,
    matrix_class,
    owners,
    positions,
)

CHUNK = 1 << 20  # elements of the rows gathered at a time by `row_products`


@array_sparse(TrueDot, StructuredDot)
def structured_dot(op, node, xp):
    """``x @ y`` with a sparse ``x``: a matrix, or an array where the Op says so."""
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
    """``x @ y`` as an array."""
    return dense_product(*node.inputs, node.outputs[0].type.dtype)


@array_sparse(Usmm)
def scaled_dot(op, node, xp):
    """``alpha * (x @ y) + z`` as an array."""
    _, x, y, _ = node.inputs
    product = dense_product(x, y, node.outputs[0].type.dtype)

    def compute(alpha, x, y, z):
        result = product(x, y)
        result *= alpha
        result += z
        return result

    return compute


def dense_product(x, y, dtype: str):
    """Return ``x @ y`` as a function of the values of two variables, one of them sparse at least."""
    both, first = is_sparse(x) and is_sparse(y), is_sparse(x)

    def product(x, y):
        result = x @ y if first else (y.T @ x.T).T
        return (result.toarray() if both else result).astype(dtype, copy=False)

    return product


@array_sparse(StructuredDotGradCSR, StructuredDotGradCSC)
def structured_dot_gradient(op, node, xp):
    """The gradient of ``a @ b`` by the stored values of ``a``: ``g @ b.T`` at their positions."""
    by_rows, dtype = isinstance(op, StructuredDotGradCSR), node.outputs[0].type.dtype

    def gradient(indices, indptr, b, g):
        owner = owners(indptr, len(indices), xp)
        row, column = (owner, indices) if by_rows else (indices, owner)
        return row_products(g, b, row, column, dtype, xp)

    return gradient


@array_sparse(SamplingDot)
def sampling_dot(op, node, xp):
    """``p * (x @ y.T)``, computed where ``p`` stores a value."""

    def sample(x, y, p):
        result = p.copy()
        row, column = positions(result)
        result.data *= row_products(x, y, row, column, xp.result_type(x, y), xp)
        return result

    return sample


def row_products(x, y, rows, columns, dtype, xp):
    """Return the vector of ``x[rows[k]] @ y[columns[k]]``.

    Parameters
    ----------
    x, y : array or sparse matrix, shapes (m, n) and (p, n)
    rows, columns : integer vectors of equal length
        The pairs of rows to multiply.
    dtype : dtype
        Of the result.
    xp : module
        Array module.
    """
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
