"""Entries that pick elements by number, or find them: repeat, permute, choose, sort, search."""

import numpy as np
from pytensor.tensor.basic import Choose, Nonzero, PermuteRowElements
from pytensor.tensor.extra_ops import RavelMultiIndex, Repeat, SearchsortedOp, Unique, UnravelIndex
from pytensor.tensor.sort import ArgSortOp, SortOp

from synk.compile.compat import take_axis
from synk.compile.dispatch.broadcast import length_check
from synk.compile.tables import array_funcify


@array_funcify.register(Repeat)
def repeat(op, node, xp):
    """Repeat each element of an axis as often as ``times`` says."""
    axis = op.axis
    if xp is np:
        return lambda x, times: xp.repeat(x, times, axis=axis)

    def taken(x, times):
        # A device would be waited for to learn how long the result is; here the host knows.
        length = x.size if axis is None else x.shape[axis]
        return x.take(xp.asarray(np.repeat(np.arange(length), times)), axis=axis)

    return taken


@array_funcify.register(Choose)
def choose(op, node, xp):
    """Compute ``choices[a]``, element by element."""
    mode, dtype = op.mode, node.outputs[0].type.dtype
    return lambda a, choices: xp.choose(a, choices, mode=mode).astype(dtype, copy=False)


@array_funcify.register(PermuteRowElements)
def permute_rows(op, node, xp):
    """Permute rows of ``x``: ``result[j] = x[y[j]]``, or ``result[y[j]] = x[j]`` if inverse."""
    inverse = op.inverse
    check = length_check([variable.type.shape[:-1] for variable in node.inputs])

    def permute(x, y):
        if check is not None:
            check((x, y))
        if x.shape[-1] != y.shape[-1]:
            raise ValueError(f"permutations of {y.shape[-1]} elements for rows of {x.shape[-1]}")
        shape = np.broadcast_shapes(x.shape, y.shape)
        matrix = int(np.prod(shape[:-1])), shape[-1]
        x, y = [xp.broadcast_to(array, shape).reshape(matrix) for array in (x, y)]
        lines = xp.arange(matrix[0])[:, None]
        if not inverse:
            return x[lines, y].reshape(shape)
        result = xp.empty_like(x)
        result[lines, y] = x
        return result.reshape(shape)

    return permute


@array_funcify.register(RavelMultiIndex)
def ravel_index(op, node, xp):
    """Compute flat indices from the indices along each axis."""
    mode, order = op.mode, op.order

    def ravel(*inputs):
        *indices, shape = inputs
        places = xp.ravel_multi_index(tuple(indices), tuple(shape.tolist()), mode=mode, order=order)
        return places.astype("int64", copy=False)

    return ravel


@array_funcify.register(UnravelIndex)
def unravel_index(op, node, xp):
    """Compute the indices along each axis from flat indices."""
    order, n_axes = op.order, len(node.outputs)

    def unravel(places, shape):
        # The parts may be views of one array, or of the places.
        parts = [
            part.astype("int64") for part in xp.unravel_index(places, tuple(shape.tolist()), order=order)
        ]
        return parts[0] if n_axes == 1 else tuple(parts)

    return unravel


@array_funcify.register(SortOp)
@array_funcify.register(ArgSortOp)
def sort(op, node, xp):
    """Compute the sorted values, or the indices that sort them."""
    function = xp.argsort if isinstance(op, ArgSortOp) else xp.sort
    # Other array modules have one algorithm each.
    keywords = {"kind": op.kind} if xp is np else {}

    def along_axis(*inputs):
        axis, (x,) = take_axis(op, inputs, 1)
        return function(x, axis=axis, **keywords)

    return along_axis


@array_funcify.register(Nonzero)
def nonzero(op, node, xp):
    """Compute the indices of elements that are not zero, one vector per axis."""

    def find(x):
        # Copied, since NumPy gives columns of one matrix.
        indices = [axis.astype("int64") for axis in xp.nonzero(x)]
        return indices[0] if len(indices) == 1 else tuple(indices)

    return find


@array_funcify.register(SearchsortedOp)
def search_sorted(op, node, xp):
    """Compute the place of each of ``values`` in a vector that is sorted, or that ``sorter`` sorts."""
    side = op.side

    def find(vector, values, sorter=None):
        return xp.searchsorted(vector, values, side=side, sorter=sorter).astype("int64", copy=False)

    return find


@array_funcify.register(Unique)
def unique(op, node, xp):
    """Compute the different values in order and, if asked for, where they are and how many."""
    wanted = {name: True for name in ("return_index", "return_inverse", "return_counts") if getattr(op, name)}
    axis = op.axis

    def find(x):
        if not wanted:
            return xp.unique(x, axis=axis)
        values, *places = xp.unique(x, axis=axis, **wanted)
        # The inverse has the shape of x in recent NumPy; PyTensor's is a vector.
        return values, *[vector.reshape(-1).astype("int64", copy=False) for vector in places]

    return find
