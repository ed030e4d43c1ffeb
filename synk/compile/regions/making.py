"""C texts of Ops that make arrays: joins, values again and again, whole numbers."""

from __future__ import annotations

from pytensor.graph.basic import Apply
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Join

from synk.compile.compat import join_pieces
from synk.compile.regions.movement import spread
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy, whole
from synk.compile.regions.writer import RegionWriter, type_of


@c_text.register(Join)
def join(op: Join, node: Apply, region: RegionWriter) -> None:
    """Arrays one after another along an axis."""
    axis, pieces = join_pieces(node)
    out = node.outputs[0]
    if axis is None:
        raise NoText("joined along nobody knows which axis")
    views = [region.view(piece) for piece in pieces]
    if any(piece.type.dtype != out.type.dtype for piece in pieces):
        raise NoText("a join of several dtypes")
    ndim = out.type.ndim
    for other in views[1:]:
        for k in range(ndim):
            if k != axis:
                region.demand(f"{other}.shape[{k}] == {views[0]}.shape[{k}]")
    total = " + ".join(f"{view}.shape[{axis}]" for view in views)
    lengths = [total if k == axis else f"{views[0]}.shape[{k}]" for k in range(ndim)]
    target, at = region.new(out, lengths), region.let_later("long")
    for view in views:
        place = region.let_view(
            f"({target}.data + {at} * {target}.strides[{axis}])", f"{view}.shape", f"{target}.strides"
        )
        copy(region, view, place, whole(out))
        region.line(f"{at} += {view}.shape[{axis}];")


@c_text.register(Alloc)
def alloc(op: Alloc, node: Apply, region: RegionWriter) -> None:
    """A value again and again."""
    value, *lengths = node.inputs
    (out,) = node.outputs
    if not lengths:
        region.same(out, value)
        return
    shape = region.let_array(len(lengths), [region.number(length) for length in lengths])
    for axis in range(len(lengths)):
        region.demand(f"{shape}[{axis}] >= 0")
    copy(region, spread(region, value, shape, len(lengths)), region.new(out, shape), whole(out))


@c_text.register(AllocEmpty)
def alloc_empty(op: AllocEmpty, node: Apply, region: RegionWriter) -> None:
    """Memory."""
    lengths = [region.number(length) for length in node.inputs]
    for length in lengths:
        region.demand(f"{length} >= 0")
    if not lengths:
        raise NoText("a number that nobody sets")
    region.new(node.outputs[0], lengths)


@c_text.register(ARange)
def arange(op: ARange, node: Apply, region: RegionWriter) -> None:
    """Whole numbers at equal distances."""
    (out,) = node.outputs
    dtypes = [variable.type.dtype for variable in (*node.inputs, out)]
    if not all(dtype.startswith(("int", "uint")) and dtype != "uint64" for dtype in dtypes):
        raise NoText("numbers that are not whole, or too large")
    start, stop, step = [region.let("long", region.number(variable)) for variable in node.inputs]
    count = region.let_later("long")
    region.demand(f"numbers({start}, {stop}, {step}, &{count})")
    target, kind = region.new(out, [count]), type_of(out)
    region.line(f"for (long i = 0; i < {count}; i++)")
    region.line(f"    *({kind} *)({target}.data + i * {target}.strides[0]) = {start} + i * {step};")
