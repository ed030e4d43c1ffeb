"""Sorting and searching: values in order, places in a sorted vector, nonzero elements, different values."""

import numpy as np
from pytensor.tensor.basic import Nonzero
from pytensor.tensor.extra_ops import SearchsortedOp, Unique
from pytensor.tensor.sort import ArgSortOp, SortOp

from synk.compile.compat import take_axis
from synk.compile.tables import array_funcify


@array_funcify.register(SortOp)
@array_funcify.register(ArgSortOp)
def sort(op, node, xp):
    """The sorted values, or the indices that sort them."""
    function = xp.argsort if isinstance(op, ArgSortOp) else xp.sort
    # Other array modules have one algorithm each.
    keywords = {"kind": op.kind} if xp is np else {}

    def along_axis(*inputs):
        axis, (x,) = take_axis(op, inputs, 1)
        return function(x, axis=axis, **keywords)

    return along_axis


@array_funcify.register(Nonzero)
def nonzero(op, node, xp):
    """The indices of what is not zero, one vector per axis."""

    def find(x):
        # Copied, since NumPy gives columns of one matrix.
        indices = [axis.astype("int64") for axis in xp.nonzero(x)]
        return indices[0] if len(indices) == 1 else tuple(indices)

    return find


@array_funcify.register(SearchsortedOp)
def search_sorted(op, node, xp):
    """Where each of ``values`` would go in a sorted vector, or in one that ``sorter`` puts in order."""
    side = op.side

    def find(vector, values, sorter=None):
        return xp.searchsorted(vector, values, side=side, sorter=sorter).astype("int64", copy=False)

    return find


@array_funcify.register(Unique)
def unique(op, node, xp):
    """The different values in order and, if asked for, where they are and how many."""
    wanted = {name: True for name in ("return_index", "return_inverse", "return_counts") if getattr(op, name)}
    axis = op.axis

    def find(x):
        if not wanted:
            return xp.unique(x, axis=axis)
        values, *places = xp.unique(x, axis=axis, **wanted)
        # The inverse has the shape of x in recent NumPy; PyTensor's is a vector.
        return values, *[vector.reshape(-1).astype("int64", copy=False) for vector in places]

    return find
