"""Elemwise: a scalar Op over whole arrays, in place where the graph allows it.

A Composite is computed by a kernel, and so is a scalar Op that NumPy is slow at; ``array_scalar`` says how
to compute any other. This file chooses, and adds the check of lengths and the ``out=`` of in-place patterns.
"""

from functools import partial

from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from synk.compile.dispatch.broadcast import length_check
from synk.compile.dispatch.fused import fused
from synk.compile.dispatch.unfused import unfused
from synk.compile.host_call import HostCall
from synk.compile.tables import accepts_out, array_funcify, array_scalar, takes_out

# Without a ufunc they take several passes over memory, or the ufunc computes one number at a time.
KERNEL_ALONE = (
    basic.ArcTan2,
    basic.Clip,
    basic.RoundHalfAwayFromZero,
    basic.Switch,
    math.Erf,
    math.Erfc,
    math.Log1mexp,
    math.Sigmoid,
    math.Softplus,
)


@array_funcify.register(Elemwise)
def elemwise(op, node, xp):
    """A scalar Op on every element."""
    composite = isinstance(op.scalar_op, Composite)
    without_kernel = unfused if composite else _by_array_functions
    if composite or (node.outputs[0].type.ndim and isinstance(op.scalar_op, KERNEL_ALONE)):
        kernel = fused(node, xp, partial(without_kernel, node, xp))
        if kernel is not None:
            return kernel
    return without_kernel(node, xp)


def _by_array_functions(node, xp):
    function = array_scalar(node.op.scalar_op, node, xp)
    return HostCall(node, xp) if function is None else _in_place(function, node, xp)


def _in_place(function, node, xp):
    """Add the check of lengths, and let the input to be overwritten be ``out``."""
    destinations = node.op.inplace_pattern
    # A 0-d array may arrive as a NumPy scalar, which nothing can be written to.
    if node.outputs[0].type.ndim == 0:
        destinations = {}
    direct = accepts_out(function, xp)
    if not direct:
        function = _copying(function, len(node.outputs))
    check = length_check([variable.type.shape for variable in node.inputs])
    if check is None and not destinations:
        return function
    single, places = len(node.outputs) == 1, [destinations.get(i) for i in range(len(node.outputs))]

    def checked(*inputs, out=None):
        if check is not None:
            check(inputs)
        if out is None and destinations:
            out = tuple([None if place is None else inputs[place] for place in places])
            out = out[0] if single else out
        return function(*inputs, out=out)

    return takes_out(checked) if direct else checked


def _copying(function, n_outputs):
    """Let a function that returns fresh arrays take ``out=``."""

    def call(*inputs, out=None):
        results = function(*inputs)
        if out is None:
            return results
        if n_outputs == 1:
            return _written(out[0] if isinstance(out, tuple) else out, results)
        return tuple([_written(target, result) for target, result in zip(out, results, strict=True)])

    return call


def _written(target, result):
    if target is None:
        return result
    target[...] = result
    return target
