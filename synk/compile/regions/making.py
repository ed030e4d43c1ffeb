"""C texts of Ops that make arrays: joins, repeated values, ranges of whole numbers, running sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Join
from pytensor.tensor.blas import Gemv
from pytensor.tensor.extra_ops import CumOp

from synk.compile.compat import join_pieces
from synk.compile.programs.elementwise.templates import carrier
from synk.compile.programs.graphs.width import cumulated
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.movement import spread
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.walks import copy, fill

# The elements of an uninitialised array: the same in each call, and never NaN by chance.
JUNK = 97

# Combines each element along an axis, but the first, with the one before it, in place.
RUNNING = """\
SHARED void NAME(char *x, const long n, const long step)
{{
    const int others = let_others(n);
    for (long k = 1; k < n; k++) {{
        const {kind} before = *({kind} *)(x + (k - 1) * step), now = *({kind} *)(x + k * step);
        *({kind} *)(x + k * step) = {up}before {sign} {up}now;
    }}
    if (others)
        come_back();
}}
"""


@c_text.register(Join)
def join(op: Join, node: Apply, region: RegionWriter) -> None:
    """Copy arrays one after another along an axis."""
    axis, pieces = join_pieces(node)
    out = node.outputs[0]
    if axis is None:
        raise NoText("a join along an axis that is not known")
    views = [region.variables.view(piece) for piece in pieces]
    if any(piece.type.dtype != out.type.dtype for piece in pieces):
        raise NoText("a join of several dtypes")
    first, *others = views
    for view in others:
        region.text.demand_same(*([one for k, one in enumerate(v.shape) if k != axis] for v in (view, first)))
    lengths = first.shape
    lengths[axis] = " + ".join(view.shape[axis] for view in views)
    target, at = region.variables.new(out, lengths), region.text.declare_variable("long")
    start = ["0"] * axis + [at]
    for view in views:
        copy(
            region.text,
            view,
            region.text.declare_view(view.dtype, target.at(*start), view.shape, target.strides),
        )
        region.text.line(f"{at} += {view.shape[axis]};")


@c_text.register(Alloc)
def alloc(op: Alloc, node: Apply, region: RegionWriter) -> None:
    """Copy a value to all places of an array of given lengths."""
    value, *lengths = node.inputs
    (out,) = node.outputs
    if not lengths:
        region.variables.same(out, value)
        return
    shape = [region.text.let("long", region.variables.number(length)) for length in lengths]
    for length in shape:
        region.text.demand(f"{length} >= 0")
    copy(region.text, spread(region, value, shape), region.variables.new(out, shape))


@c_text.register(AllocEmpty)
def alloc_empty(op: AllocEmpty, node: Apply, region: RegionWriter) -> None:
    """Take memory, and fill it unless it is overwritten before any element is read."""
    lengths = [region.variables.number(length) for length in node.inputs]
    for length in lengths:
        region.text.demand(f"{length} >= 0")
    if not lengths:
        raise NoText("a number that nobody sets")
    target = region.variables.new(node.outputs[0], lengths)
    if not all(map(is_unread, region.liveness.readers(node.outputs[0]))):
        fill(region.text, target, str(int(np.array(JUNK).astype(target.dtype))))


def is_unread(reader: Any) -> bool:
    """Tell whether a node overwrites its first input without reading it, as ``0 * y + A @ x`` does."""
    if not isinstance(getattr(reader, "op", None), Gemv):
        return False
    beta = reader.inputs[4]
    return isinstance(beta, Constant) and not beta.data.any()


@c_text.register(ARange)
def arange(op: ARange, node: Apply, region: RegionWriter) -> None:
    """Count from a start to a stop in equal steps."""
    (out,) = node.outputs
    dtypes = [variable.type.dtype for variable in (*node.inputs, out)]
    if not all(dtype.startswith(("int", "uint")) and dtype != "uint64" for dtype in dtypes):
        raise NoText("numbers that are not whole, or too large")
    start, stop, step = [
        region.text.let("long", region.variables.number(variable)) for variable in node.inputs
    ]
    count = region.text.declare_variable("long")
    region.text.demand(f"numbers({start}, {stop}, {step}, &{count})")
    target, others = region.variables.new(out, [count]), region.text.let("int", f"let_others({count})")
    region.text.line(f"for (long i = 0; i < {count}; i++)")
    region.text.line(f"    *({target.kind} *)({target.at('i')}) = {start} + i * {step};")
    region.text.line(f"if ({others}) come_back();")


@c_text.register(CumOp)
def cumulative(op: CumOp, node: Apply, region: RegionWriter) -> None:
    """Compute running sums or products in a copy."""
    (x,), (out,) = node.inputs, node.outputs
    ndim, dtype = x.type.ndim, out.type.dtype
    if (op.axis is None and ndim != 1) or cumulated(x.type.dtype) != dtype:
        raise NoText("a running sum of all axes, or in another dtype")
    view, axis = region.variables.view(x), (op.axis or 0) % ndim
    target = region.variables.new(out, view.shape)
    copy(region.text, view, target)
    run = region.text.function(
        RUNNING.format(kind=target.kind, up=carrier(dtype), sign="+" if op.mode == "add" else "*")
    )
    start = ["0" if k == axis else f"i{k}" for k in range(ndim)]
    for k in range(ndim):
        if k != axis:
            region.text.line(f"for (long i{k} = 0; i{k} < {target.shape[k]}; i{k}++)")
    region.text.line(f"{run}({target.at(*start)}, {target.shape[axis]}, {target.strides[axis]});")
