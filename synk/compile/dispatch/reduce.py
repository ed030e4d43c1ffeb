"""Reductions and running reductions along axes: sum, prod, max, min, all, any, argmax, cumsum, cumprod."""

from functools import partial

import numpy as np
from pytensor.scalar import basic
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax

from synk.compile.dispatch.host import HostCall
from synk.compile.dispatch.table import array_funcify

METHODS = {basic.Add: "sum", basic.Mul: "prod", basic.Maximum: "max", basic.Minimum: "min"}
LOGICAL = {basic.AND: "all", basic.OR: "any"}


@array_funcify.register(CAReduce)
def careduce(op, node, xp):
    """Sum, product, extreme or logic over axes."""
    kind, dtype = type(op.scalar_op), node.outputs[0].type.dtype
    logical = kind in LOGICAL and dtype == "bool" == node.inputs[0].type.dtype
    if not logical and kind not in METHODS:
        return HostCall(node, xp)
    keywords = {"axis": op.axis}
    if kind in (basic.Maximum, basic.Minimum) and getattr(op, "initial", False) is not False:
        keywords["initial"] = op.initial
    if kind not in (basic.Add, basic.Mul):
        method = LOGICAL[kind] if logical else METHODS[kind]
        return lambda x: getattr(x, method)(**keywords)
    accumulator = np.dtype(op.acc_dtype or dtype)
    if kind is basic.Add and node.inputs[0].type.dtype == dtype == "float32" and accumulator == "float64":
        return _sum_float32(op.axis, node.inputs[0].type.ndim)
    return _accumulate(METHODS[kind], op.axis, accumulator, np.dtype(dtype))


def _accumulate(method, axis, accumulator, dtype):
    if accumulator == dtype:
        return lambda x: getattr(x, method)(axis=axis, dtype=dtype)
    return lambda x: getattr(x, method)(axis=axis, dtype=accumulator).astype(dtype)


def _sum_float32(axis, ndim):
    """Sum float32 with the accumulator it needs.

    The graph asks for float64, four times slower. NumPy adds contiguous trailing axes pairwise, with an
    error that grows with the logarithm of the length, so float32 is accurate there; across rows it adds
    one by one, with an error that grows with their number, so there float64 it is.
    """
    axes = tuple(range(ndim)) if axis is None else tuple(sorted(axis))
    trailing = axes == tuple(range(ndim - len(axes), ndim))

    def total(x):
        if trailing and x.flags.c_contiguous:
            return x.sum(axis=axes)
        return x.sum(axis=axes, dtype="float64").astype("float32")

    return total


@array_funcify.register(Argmax)
def argmax(op, node, xp):
    """The index of the first maximum, over one axis or over several taken as one."""
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
    """Running sum or product."""
    function = xp.cumsum if op.mode == "add" else xp.cumprod
    return partial(function, axis=op.axis, dtype=node.outputs[0].type.dtype)
