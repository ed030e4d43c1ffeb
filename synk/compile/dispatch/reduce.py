"""Entries for reductions by any associative scalar Op, argmax, running sums and products, and softmax."""

from functools import partial

import numpy as np
from pytensor.scalar import basic
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.type import TensorType

from synk.compile.dispatch.pairwise import sum_float32
from synk.compile.host_call import HostCall
from synk.compile.programs.graphs.width import cumulated, refusal
from synk.compile.tables import array_funcify, array_scalar, takes_out

ACCUMULATING = {basic.Add: "sum", basic.Mul: "prod"}
EXTREME = {basic.Maximum: "max", basic.Minimum: "min"}
LOGICAL = {basic.AND: "all", basic.OR: "any"}


@array_funcify.register(CAReduce)
def careduce(op, node, xp):
    """Reduce axes by sum, product, extreme, logic or any other associative scalar Op."""
    kind, ndim = type(op.scalar_op), node.inputs[0].type.ndim
    source, dtype = np.dtype(node.inputs[0].type.dtype), np.dtype(node.outputs[0].type.dtype)
    accumulator = np.dtype(op.acc_dtype or dtype)
    axes = tuple(range(ndim)) if op.axis is None else tuple(sorted(op.axis))
    if kind is basic.Add and source == dtype == "float32" and accumulator == "float64":
        return _sum_float32(axes, xp)
    if kind in ACCUMULATING:
        return _method(ACCUMULATING[kind], accumulator, dtype, axis=axes, dtype=accumulator)
    if kind in EXTREME:
        return _method(EXTREME[kind], source, dtype, axis=axes, **_initial(op, dtype))
    if kind in LOGICAL and source == accumulator == "bool":
        return _method(LOGICAL[kind], source, dtype, axis=axes)
    return _tree(op, node, xp, axes, accumulator, dtype)


def _method(name, computed, declared, **keywords):
    """Return a reduction by a method of arrays; its result is converted from ``computed`` to ``declared``."""

    def reduction(x, out=None):
        if computed == declared:
            return getattr(x, name)(out=out, **keywords)
        # Not straight to out: that would round every partial result.
        return deliver(getattr(x, name)(**keywords), declared, out)

    return takes_out(reduction)


def deliver(value, dtype, out=None):
    """Write a new array to ``out`` if that is given; else return it, as ``dtype`` unless that is None."""
    if out is None:
        return value if dtype is None else value.astype(dtype, copy=False)
    out[...] = value
    return out


def _initial(op, dtype) -> dict:
    """Return the keywords that define an empty maximum or minimum, where the Op has a value for it."""
    value = op.initial_value(dtype) if hasattr(op, "initial_value") else None
    return {} if value is None else {"initial": value}


def _sum_float32(axes, xp):
    """Return a sum of float32 that is nearly as accurate as in float64, in less time; see `pairwise`."""
    if xp is not np:
        return _method("sum", "float32", "float32", axis=axes)  # devices add in trees

    def total(x, out=None):
        return deliver(sum_float32(np.asarray(x), axes), "float32", out)

    return takes_out(total)


def _tree(op, node, xp, axes, accumulator, dtype):
    """Return a reduction that combines halves until one element is left: log2(n) calls on arrays."""
    term = TensorType(accumulator, (None, None))
    combine = array_scalar(op.scalar_op, Elemwise(op.scalar_op)(term(), term()).owner, xp)
    if combine is None:
        return HostCall(node, xp)
    ndim = node.inputs[0].type.ndim
    kept = [axis for axis in range(ndim) if axis not in axes]

    def reduction(x, out=None):
        x = xp.asarray(x, dtype=accumulator).transpose((*axes, *kept))
        shape = x.shape[len(axes) :]
        x = x.reshape(int(np.prod(x.shape[: len(axes)])), int(np.prod(shape)))
        return deliver(_combine_rows(x, combine, op.scalar_op, xp).reshape(shape), dtype, out)

    return takes_out(reduction)


def _combine_rows(x, combine, scalar_op, xp):
    """Return a new row that combines the rows of ``x``; without rows, the identity of the scalar Op."""
    if len(x) == 0:
        if scalar_op.identity is None:
            raise ValueError(f"zero-size array to reduction by {scalar_op}, which has no identity")
        return xp.full(x.shape[1:], np.array(scalar_op.identity).astype(x.dtype).item(), x.dtype)
    if len(x) == 1:
        return x[0].copy()
    while len(x) > 1:
        half, odd = divmod(len(x), 2)
        pairs = combine(x[:half], x[half : 2 * half]).astype(x.dtype, copy=False)
        if odd:
            pairs[-1:] = combine(pairs[-1:], x[-1:])
        x = pairs
    return x[0]


@array_funcify.register(Argmax)
def argmax(op, node, xp):
    """Compute the index of the first maximum, over one axis or over several taken as one."""
    ndim = node.inputs[0].type.ndim
    axes = tuple(range(ndim)) if op.axis is None else op.axis
    if len(axes) == 1:
        return lambda x: xp.argmax(x, axis=axes[0])
    kept = [axis for axis in range(ndim) if axis not in axes]

    def over_axes(x):
        x = x.transpose((*kept, *axes))
        flat = int(np.prod(x.shape[len(kept) :]))  # -1 would be ambiguous where a kept axis is empty
        return xp.argmax(x.reshape((*x.shape[: len(kept)], flat)), axis=-1)

    return over_axes


@array_funcify.register(CumOp)
def cumulative(op, node, xp):
    """Compute a running sum or product."""
    wide = cumulated(node.inputs[0].type.dtype)
    if wide != node.outputs[0].type.dtype:
        raise TypeError(refusal(node, f"what reads it takes {node.outputs[0].type.dtype}, not {wide}"))
    function = xp.cumsum if op.mode == "add" else xp.cumprod
    return partial(function, axis=op.axis, dtype=node.outputs[0].type.dtype)


@array_funcify.register(Softmax)
def softmax(op, node, xp):
    """Compute ``exp(x - max x) / sum exp(x - max x)`` along an axis, in one buffer of the input's size."""
    axis, dtype = op.axis, node.outputs[0].type.dtype

    def function(x):
        if x.size == 0:  # which has no largest
            return xp.empty(x.shape, dtype)
        result = xp.subtract(x, x.max(axis=axis, keepdims=True), dtype=dtype)
        xp.exp(result, out=result)
        result /= result.sum(axis=axis, keepdims=True)
        return result

    return function


@array_funcify.register(LogSoftmax)
def log_softmax(op, node, xp):
    """Compute ``(x - max x) - log sum exp(x - max x)`` along an axis, in one buffer too."""
    axis, dtype = op.axis, node.outputs[0].type.dtype

    def function(x):
        if x.size == 0:
            return xp.empty(x.shape, dtype)
        result = xp.subtract(x, x.max(axis=axis, keepdims=True), dtype=dtype)
        result -= xp.log(xp.exp(result).sum(axis=axis, keepdims=True))
        return result

    return function
