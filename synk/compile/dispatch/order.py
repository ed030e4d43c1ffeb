"""Sorting."""

import numpy as np
from pytensor.tensor.sort import ArgSortOp, SortOp

from synk.compile.compat import take_axis
from synk.compile.dispatch.table import array_funcify


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
