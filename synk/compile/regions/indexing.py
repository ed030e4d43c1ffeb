"""C texts of Ops that take or change parts of an array: at positions, or in slices."""

from __future__ import annotations

from string import Template

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor

from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.elementwise.body import Body, Operand
from synk.compile.elementwise.dialect import TYPES
from synk.compile.regions.movement import part, spread
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copied, copy, loop_text, one_element, run, sum_of, whole
from synk.compile.regions.writer import RegionWriter, type_of

AT_POSITIONS = Template("""\
SHARED int NAME(const View *x, const View *const *positions, const View *y)
{
    const long n = positions[0]->shape[0], dense = dense_rows(x, $n_axes, y, $n_rest, $size);
    for (long i = 0; i < n; i++) {
        char *at = x->data;
        long k;
$indices
        const View place = {at, x->shape + $n_axes, x->strides + $n_axes};
        const View row = {y->data + i * y->strides[0], y->shape + 1, y->strides + 1};
        $move
    }
    return 1;
}
""")
ONE_INDEX = Template("""\
        k = *(const $kind *)(positions[$axis]->data + i * positions[$axis]->strides[0]);
        k += k < 0 ? x->shape[$axis] : 0;
        if (k < 0 || k >= x->shape[$axis])
            return 0;
        at += k * x->strides[$axis];""")


@c_text.register(AdvancedSubtensor)
@c_text.register(AdvancedSubtensor1)
def take(op, node: Apply, region: RegionWriter) -> None:
    """A copy of what is at some positions."""
    x, (out,), positions = node.inputs[0], node.outputs, positions_of(node, 1)
    view, row = region.view(x), row_axes(x, positions)
    lengths = [f"{region.view(positions[0])}.shape[0]", *(f"{view}.shape[{axis}]" for axis in row)]
    move = moved(region, copied(Operand(x.type.dtype, (False,) * len(row))), ["place", "row"])
    at_positions(region, node, positions, view, region.new(out, lengths), move)


@c_text.register(AdvancedIncSubtensor)
@c_text.register(AdvancedIncSubtensor1)
def put(op, node: Apply, region: RegionWriter) -> None:
    """A copy with something else at some positions, or with it added: as often as a position comes."""
    x, y, positions = node.inputs[0], node.inputs[1], positions_of(node, 2)
    if getattr(op, "ignore_duplicates", False):
        raise NoText("positions that count once")
    row = row_axes(x, positions)
    body = change(op, x, y, len(row))
    target = changed_copy(region, node)
    lengths = [f"{region.view(positions[0])}.shape[0]", *(f"{target}.shape[{axis}]" for axis in row)]
    value = spread(region, y, region.let_array(len(lengths), lengths), len(lengths))
    move = moved(region, body, read_and_written("row", "place", body))
    at_positions(region, node, positions, target, value, move)


@c_text.register(IncSubtensor)
def put_part(op: IncSubtensor, node: Apply, region: RegionWriter) -> None:
    """A copy with something else in some slices, or with it added."""
    x, y, *positions = node.inputs
    if not x.type.ndim:
        raise NoText("a part of a number")
    change(op, x, y, x.type.ndim)
    target = changed_copy(region, node)
    data, shape, strides = part(region, op, target, x.type.ndim, positions)
    ndim = len(shape)
    lengths = region.let_array(ndim, shape)
    place = region.let_view(data, lengths, region.let_array(ndim, strides))
    body, value = change(op, x, y, ndim), spread(region, y, lengths, ndim)
    if ndim:
        run(region, body, read_and_written(value, place, body))
    else:
        region.line(moved(region, body, read_and_written(value, place, body)))


def positions_of(node: Apply, first: int) -> list[Variable]:
    """Return the vectors of positions along the first axes; NoText for any other index."""
    op, found = node.op, node.inputs[first:]
    one_vector = isinstance(op, AdvancedSubtensor1 | AdvancedIncSubtensor1)
    if not one_vector and tuple(op.idx_list) != tuple(range(len(found))):
        raise NoText("an index of other parts than positions along the first axes")
    for one in found:
        if getattr(one.type, "ndim", 0) != 1 or not one.type.dtype.startswith(("int", "uint")):
            raise NoText("an index that is no vector of whole numbers")
    return found


def row_axes(x: Variable, positions: list[Variable]) -> range:
    """Return the axes of what lies at one position."""
    return range(len(positions), x.type.ndim)


def change(op, x: Variable, y: Variable, ndim: int) -> Body:
    """Return the change of an element, of the new one, or of an addend and the old one."""
    dtype = x.type.dtype
    if dtype != y.type.dtype:
        raise NoText("a part of another dtype")
    operand = Operand(dtype, (False,) * ndim)
    if op.set_instead_of_inc:
        return copied(operand)
    if dtype == "bool":
        raise NoText("a sum of truth values")
    return Body((operand, operand), (operand,), (), (sum_of("x1", "x0", dtype),), frozenset())


def read_and_written(value: str, place: str, body: Body) -> list[str]:
    """Return the views that a change reads, then the one that it writes."""
    return [value, place] if len(body.inputs) == 1 else [value, place, place]


def moved(region: RegionWriter, body: Body, views: list[str]) -> str:
    """Return the lines that compute the elements of the last of some views from those of the others."""
    if body.ndim:
        name = region.function(loop_text(body, [0], []))
        listed = ", ".join(f"&{view}" for view in views)
        general = f"{name}({views[-1]}.shape, (const View *const[]){{{listed}}});"
        return f"if (dense) for (long e = 0; e < dense; e++) {_one(region, body, views, 'e')} else {general}"
    return _one(region, body, views, "0")


def _one(region: RegionWriter, body: Body, views: list[str], at: str) -> str:
    *read, written = [f"(({TYPES[body.outputs[0].dtype]} *){view}.data)[{at}]" for view in views]
    return f"{region.function(one_element(body))}({', '.join(read)}, &{written});"


def at_positions(
    region: RegionWriter, node: Apply, positions: list[Variable], view: str, rows: str, move: str
):
    """Add a loop over positions in a view, and over rows; ``move`` is C, of ``place`` and ``row``."""
    views, x = [region.view(one) for one in positions], node.inputs[0]
    for one in views[1:]:
        region.demand(f"{one}.shape[0] == {views[0]}.shape[0]")
    indices = [ONE_INDEX.substitute(kind=type_of(one), axis=axis) for axis, one in enumerate(positions)]
    text = AT_POSITIONS.substitute(
        indices="\n".join(indices),
        n_axes=len(positions),
        n_rest=len(row_axes(x, positions)),
        size=np.dtype(x.type.dtype).itemsize,
        move=move,
    )
    listed = ", ".join(f"&{one}" for one in views)
    region.demand(f"{region.function(text)}(&{view}, (const View *const[]){{{listed}}}, &{rows})")


def changed_copy(region: RegionWriter, node: Apply) -> str:
    """Return the view of a copy of a node's first input, or of it, which becomes the node's output."""
    x, (out,) = node.inputs[0], node.outputs
    if x.type.dtype != out.type.dtype:
        raise NoText("a copy in another dtype")
    view = region.view(x)
    target = region.take_over(out, x, node)
    if target is None:
        target = region.new(out, [f"{view}.shape[{k}]" for k in range(x.type.ndim)])
        copy(region, view, target, whole(out))
    return target
