"""Entries for shapes: read and check them, permute and regroup axes, join arrays and split one.

All results but lengths and joins are views, as the Ops' ``view_map`` says.
"""

from collections.abc import Callable

import numpy as np
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import CpuContiguous
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from synk.compile.compat import take_axis
from synk.compile.tables import array_funcify, takes_out


@array_funcify.register(DimShuffle)
def dimshuffle(op, node, xp):
    """Permute, drop and add axes."""
    dropped = op.drop
    permutation = (*(axis for axis in op.new_order if axis != "x"), *dropped)
    index = (*(None if axis == "x" else slice(None) for axis in op.new_order), *[0] * len(dropped))
    permutes = permutation != tuple(range(len(permutation)))
    indexes = dropped or None in index

    def shuffle(x):
        for axis in dropped:
            if x.shape[axis] != 1:
                raise ValueError(f"cannot drop axis {axis} of length {x.shape[axis]}; only length 1 can go")
        if permutes:
            x = x.transpose(permutation)
        return x[index] if indexes else x

    return shuffle


@array_funcify.register(JoinDims)
def join_dims(op, node, xp):
    """Make one axis of consecutive ones."""
    start, stop = op.start_axis, op.start_axis + op.n_axes

    def join(x):
        # Not -1: ambiguous where another axis is empty.
        return x.reshape((*x.shape[:start], int(np.prod(x.shape[start:stop])), *x.shape[stop:]))

    return join


@array_funcify.register(SplitDims)
def split_dims(op, node, xp):
    """Make several axes of one."""
    axis = op.axis
    return lambda x, shape: x.reshape((*x.shape[:axis], *shape.tolist(), *x.shape[axis + 1 :]))


@array_funcify.register(SpecifyShape)
def specify_shape(op, node, xp):
    """Return the input itself, if it has the declared shape."""

    def check(x, *shape):
        if len(shape) != x.ndim or any(
            n is not None and n != length for n, length in zip(shape, x.shape, strict=True)
        ):
            expected = tuple(None if n is None else int(n) for n in shape)
            raise AssertionError(f"SpecifyShape: got shape {x.shape}, expected {expected}")
        return x

    return check


@array_funcify.register(Join)
def join(op, node, xp):
    """Concatenate arrays along an axis."""
    return concatenation(op, xp, node.outputs[0].type.dtype)


def concatenation(op, xp, dtype):
    """Return the implementation of a Join with results of ``dtype``; its pieces may have other dtypes."""

    def concatenate(*inputs, out=None):
        axis, arrays = take_axis(op, inputs, 0)
        if out is not None:
            return xp.concatenate(arrays, axis=axis, out=out, casting="unsafe")
        return xp.concatenate(arrays, axis=axis, dtype=dtype, casting="unsafe")

    return takes_out(concatenate)


@array_funcify.register(Split)
def split(op, node, xp):
    """Return consecutive parts of an axis."""
    views, single = bool(op.view_map), op.len_splits == 1

    def cut(*inputs):
        axis, (x, lengths) = take_axis(op, inputs, 1)
        check_lengths(lengths, op.len_splits, x.shape[axis])
        parts = xp.split(x, np.cumsum(lengths[:-1]).tolist(), axis=axis)
        if not views:
            parts = [part.copy() for part in parts]
        return parts[0] if single else tuple(parts)

    return cut


def check_lengths(lengths, n_parts: int, total: int) -> None:
    """Raise ValueError unless ``lengths`` cut an axis of length ``total`` into ``n_parts`` parts."""
    if len(lengths) != n_parts:
        raise ValueError(f"{len(lengths)} lengths for {n_parts} parts; give one per part")
    if (lengths < 0).any():
        raise ValueError(f"lengths {lengths.tolist()} must not be negative")
    if lengths.sum() != total:
        raise ValueError(f"lengths {lengths.tolist()} sum to {lengths.sum()}; the axis has {total}")


def reshape(x, shape):
    """Return the same elements in another shape: a view if possible, else a copy."""
    lengths = tuple(shape.tolist())
    if x.ndim > len(lengths) == 2 and lengths[0] == len(x) and x.strides[0] == x.itemsize:
        # Columns of such a matrix lie one after another. To copy them by rows takes four times as long.
        return x.transpose(*range(1, x.ndim), 0).reshape(lengths[::-1]).T
    return x.reshape(lengths)


ENTRIES: dict[type, Callable] = {
    Reshape: lambda op, node, xp: reshape,
    # All lengths, as a vector; one length, a host scalar whatever the array module.
    Shape: lambda op, node, xp: lambda x: xp.array(x.shape, dtype="int64"),
    Shape_i: lambda op, node, xp: lambda x, axis=op.i: np.int64(x.shape[axis]),
    # The input itself if it is in C order, else a copy that is.
    CpuContiguous: lambda op, node, xp: lambda x: x if x.flags.c_contiguous else x.copy(order="C"),
}

for op_class, entry in ENTRIES.items():
    array_funcify.register(op_class, entry)
