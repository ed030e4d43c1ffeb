"""Entries that make arrays: filled, uninitialised, counted, triangular, of scalars; and diagonals."""

from collections.abc import Callable
from itertools import accumulate
from operator import mul

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, ExtractDiag, Eye, MakeVector
from pytensor.tensor.extra_ops import Bartlett, FillDiagonal, FillDiagonalOffset

from synk.compile.dispatch.broadcast import check_fill
from synk.compile.tables import array_funcify


@array_funcify.register(Alloc)
def alloc(op, node, xp):
    """Broadcast a value to a new array of a given shape."""
    value_type = node.inputs[0].type
    dtype, static = value_type.dtype, value_type.shape
    value = node.inputs[0].data if isinstance(node.inputs[0], Constant) else None
    if value is not None and value.size == 1 and value.item() == 0:
        return lambda value, *shape: xp.zeros([int(n) for n in shape], dtype)

    def fill(value, *shape):
        shape = [int(n) for n in shape]
        check_fill(static, value.shape, shape)
        result = xp.empty(shape, dtype)
        result[...] = value
        return result

    return fill


@array_funcify.register(ExtractDiag)
def extract_diagonal(op, node, xp):
    """Return the diagonals of two axes as the last axis, in a view if the Op declares one."""
    offset, axis1, axis2 = op.offset, op.axis1, op.axis2
    if not op.view:
        return lambda x: xp.diagonal(x, offset, axis1, axis2).copy()

    def view(x):
        result = xp.diagonal(x, offset, axis1, axis2)
        if xp is np:  # which protects it from writing; in the graph it may be destroyed in place of x
            result.flags.writeable = x.flags.writeable
        return result

    return view


@array_funcify.register(FillDiagonal)
def fill_diagonal(op, node, xp):
    """Return a copy with one value at all elements whose indices are equal."""

    def fill(x, value):
        width = x.shape[-1]
        if x.ndim > 2 and any(length != width for length in x.shape):
            raise ValueError(f"cannot fill the diagonal of shape {x.shape}: all lengths must be equal")
        # One step along every axis at once; a tall matrix ends after its last column.
        step = 1 + sum(accumulate(x.shape[:0:-1], mul))
        return _fill_flat(x, value, slice(0, width * step, step))

    return fill


@array_funcify.register(FillDiagonalOffset)
def fill_diagonal_offset(op, node, xp):
    """Return a copy of a matrix with one value on the diagonal ``offset`` places right of the main one."""

    def fill(x, value, offset):
        height, width = x.shape
        row, column = max(0, -int(offset)), max(0, int(offset))
        length = max(0, min(height - row, width - column))
        start = row * width + column
        return _fill_flat(x, value, slice(start, start + length * (width + 1), width + 1))

    return fill


def _fill_flat(x, value, places):
    """Return a copy of ``x`` in C order with ``value`` at the given indices or slice of its flat elements."""
    result = x.copy()
    result.reshape(-1)[places] = value
    return result


ENTRIES: dict[type, Callable] = {
    # Uninitialised memory.
    AllocEmpty: lambda op, node, xp: lambda *shape, dtype=op.dtype: xp.empty([int(n) for n in shape], dtype),
    # Scalars side by side.
    MakeVector: lambda op, node, xp: lambda *scalars, dtype=op.dtype: xp.array(scalars, dtype=dtype),
    # ``start, start + step, ...`` up to ``stop``, exclusive.
    ARange: lambda op, node, xp: lambda *ends: xp.arange(*[end.item() for end in ends], dtype=op.dtype),
    # Ones on diagonal ``k`` of an n by m matrix.
    Eye: lambda op, node, xp: lambda n, m, k: xp.eye(int(n), int(m), int(k), dtype=op.dtype),
    # The triangular window of so many points.
    Bartlett: lambda op, node, xp: lambda length: xp.bartlett(int(length)),
}

for op_class, entry in ENTRIES.items():
    array_funcify.register(op_class, entry)
