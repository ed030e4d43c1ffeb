"""Elemwise: a scalar Op over whole arrays, in place where the graph allows it.

``array_scalar`` says how to compute the scalar Op; this file adds declared dtype, the check of
lengths and the ``out=`` of an in-place pattern.
"""

from functools import partial

import numpy as np
from pytensor.tensor.elemwise import Elemwise

from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import array_funcify, array_scalar


@array_funcify.register(Elemwise)
def elemwise(op, node, xp):
    """A scalar Op on every element."""
    function = array_scalar(op.scalar_op, node, xp) if len(node.outputs) == 1 else None
    if function is None:
        return HostCall(node, xp)
    destination = op.inplace_pattern.get(0)
    # A 0-d array may arrive as a NumPy scalar, which nothing can be written to.
    if node.outputs[0].type.ndim == 0 or not accepts_out(function):
        destination = None
    check = length_check([variable.type.shape for variable in node.inputs])
    if check is None and destination is None:
        return function
    if check is None:
        return lambda *inputs: function(*inputs, out=inputs[destination])

    def checked(*inputs):
        check(inputs)
        return function(*inputs) if destination is None else function(*inputs, out=inputs[destination])

    return checked


def accepts_out(function) -> bool:
    """Tell whether ``function`` writes its result to ``out=``: ufuncs, and what is marked ``takes_out``."""
    if isinstance(function, partial):
        function = function.func
    # Other array modules have a ufunc class of their own, of the same name.
    return type(function).__name__ == np.ufunc.__name__ or hasattr(function, "takes_out")
