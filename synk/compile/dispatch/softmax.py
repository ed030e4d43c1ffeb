"""Softmax and its logarithm, each in one buffer of the input's size.

softmax(x) = exp(x - max x) / sum exp(x - max x)
log_softmax(x) = (x - max x) - log sum exp(x - max x)
"""

from pytensor.tensor.special import LogSoftmax, Softmax

from synk.compile.dispatch.table import array_funcify


@array_funcify.register(Softmax)
def softmax(op, node, xp):
    """Positive numbers that sum to one along the axis."""
    axis, dtype = op.axis, node.outputs[0].type.dtype

    def function(x):
        result = xp.subtract(x, x.max(axis=axis, keepdims=True), dtype=dtype)
        xp.exp(result, out=result)
        result /= result.sum(axis=axis, keepdims=True)
        return result

    return function


@array_funcify.register(LogSoftmax)
def log_softmax(op, node, xp):
    """Their logarithm, without computing them."""
    axis, dtype = op.axis, node.outputs[0].type.dtype

    def function(x):
        result = xp.subtract(x, x.max(axis=axis, keepdims=True), dtype=dtype)
        result -= xp.log(xp.exp(result).sum(axis=axis, keepdims=True))
        return result

    return function
