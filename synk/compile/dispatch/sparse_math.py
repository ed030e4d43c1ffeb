"""Sums, elementwise arithmetic and comparisons of sparse matrices.

A product with an array, and a structured sum, is computed where a value is stored and nowhere else: a zero
that is not stored stays zero, even where the array holds an infinity or NaN.

PyTensor 3.3 renamed the classes of most Ops, but not their instances, hence ``type(add_s_s)``.
"""

from pytensor.sparse.basic import ColScaleCSC, RowScaleCSC
from pytensor.sparse.math import (
    SpSum,
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
    positions,
)


@array_sparse(SpSum)
def total(op, node, xp):
    """The sum over one axis or both."""
    dtype = node.outputs[0].type.dtype
    if op.axis is None:
        return lambda x: xp.asarray(x.sum(), dtype=dtype)
    return lambda x: as_vector(x.sum(axis=op.axis), dtype, xp)


@array_sparse(type(add_s_s), type(mul_s_s))
def combine(op, node, xp):
    """The sum or product of two matrices, in the format of the first."""
    adds = op == add_s_s
    format, dtype = node.outputs[0].type.format, node.outputs[0].type.dtype

    def compute(x, y):
        check_same_shape(x, y)
        result = (x + y if adds else x.multiply(y)).asformat(format)
        return result if result.dtype == dtype else result.astype(dtype)

    return compute


@array_sparse(type(add_s_s_data))
def add_data(op, node, xp):
    """The sum of two matrices that store values at the same positions, in the same order."""

    def add(x, y):
        check_same_shape(x, y)
        check_same_shape(x.data, y.data)
        result = x.copy()
        result.data += y.data
        return result

    return add


@array_sparse(type(add_s_d))
def add_dense(op, node, xp):
    """The sum of a matrix and an array: an array."""
    dtype = node.outputs[0].type.dtype

    def add(x, y):
        check_same_shape(x, y)
        result = x.toarray().astype(dtype, copy=False)
        result += y
        return result

    return add


@array_sparse(type(structured_add_s_v))
def add_to_stored(op, node, xp):
    """A vector added to each row, where a value other than zero is stored."""

    def add(x, y):
        check_length(y, x.shape[1])
        result = x.copy()
        result.sum_duplicates()
        result.data += xp.where(result.data != 0, y[positions(result)[1]], 0)
        return result

    return add


@array_sparse(type(mul_s_d))
def multiply_dense(op, node, xp):
    """A matrix times an array of its shape, or times a scalar."""
    dtype = node.outputs[0].type.dtype

    def multiply(x, y):
        result = x.astype(dtype)
        if y.ndim == 2:
            check_same_shape(x, y)
            y = y[positions(result)]
        result.data *= y
        return result

    return multiply


@array_sparse(type(mul_s_v), ColScaleCSC)
def scale_columns(op, node, xp):
    """Each column times an element of a vector."""
    return _scale(1)


@array_sparse(RowScaleCSC)
def scale_rows(op, node, xp):
    """Each row times an element of a vector."""
    return _scale(0)


def _scale(axis: int):
    def scale(x, factors):
        check_length(factors, x.shape[axis])
        result = x.copy()
        result.data *= factors[positions(result)[axis]]
        return result

    return scale


@array_sparse(type(equal_s_s).__bases__[0])
def compare(op, node, xp):
    """Where two matrices compare as asked, as a matrix of ones."""
    format, dtype = node.outputs[0].type.format, node.outputs[0].type.dtype

    def compute(x, y):
        check_same_shape(x, y)
        return op.comparison(x, y).astype(dtype).asformat(format)

    return compute


@array_sparse(type(equal_s_d).__bases__[0])
def compare_dense(op, node, xp):
    """Where a matrix and an array compare as asked, as an array of ones and zeros."""
    dtype = node.outputs[0].type.dtype

    def compute(x, y):
        check_same_shape(x, y)
        return op.comparison(x.toarray(), y).astype(dtype)

    return compute
