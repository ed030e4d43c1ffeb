"""C texts of Ops that take or change parts of an array: at positions, or in slices."""

from __future__ import annotations

from string import Template

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor

from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.elementwise.body import Body
from synk.compile.regions.movement import part, spread
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.views import View, listed
from synk.compile.regions.walks import call, copy, copy_call, sum_of, whole
from synk.compile.regions.writer import RegionWriter

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

# Of a vector, the positions of a block are checked before they are used: vector instructions do that.
OF_VECTOR = Template("""\
SHARED int NAME(const View *x, const View *positions, const View *y)
{
    const long n = positions->shape[0], length = x->shape[0], step = x->strides[0], size = sizeof($kind);
    const char *const data = x->data;
    for (long at = 0; at < n; at += BLOCK) {
        const long m = n - at < BLOCK ? n - at : BLOCK;
        const char *const from = positions->data + at * positions->strides[0];
        char *const to = y->data + at * y->strides[0];
        int outside = 0;
#define TAKE(by_index, step, by) { \\
    for (long i = 0; i < m; i++) { \\
        const long k = *(const $index *)(from + i * (by_index)); \\
        outside |= (k < -length) | (k >= length); \\
    } \\
    if (outside) \\
        return 0; \\
    for (long i = 0; i < m; i++) { \\
        const long k = *(const $index *)(from + i * (by_index)); \\
        *($kind *)(to + i * (by)) = *(const $kind *)(data + (k < 0 ? k + length : k) * (step)); \\
    } \\
}
        if (positions->strides[0] == sizeof($index) && step == size && y->strides[0] == size)
            TAKE(sizeof($index), size, size)
        else
            TAKE(positions->strides[0], step, y->strides[0])
    }
    return 1;
}
""")


@c_text.register(AdvancedSubtensor)
@c_text.register(AdvancedSubtensor1)
def take(op, node: Apply, region: RegionWriter) -> None:
    """Copy what is at some positions."""
    x, (out,), positions = node.inputs[0], node.outputs, positions_of(node, 1)
    view, first = region.view(x), region.view(positions[0])
    target = region.new(out, first.shape + view.shape[len(positions) :])
    if view.ndim == 1:
        taken = region.function(OF_VECTOR.substitute(index=first.kind, kind=view.kind))
        region.demand(f"{taken}(&{view}, &{first}, &{target})")
        return
    place, row = (View(name, view.dtype, target.ndim - 1) for name in ("place", "row"))
    at_positions(region, positions, view, target, changed(region, place, row))


@c_text.register(AdvancedIncSubtensor)
@c_text.register(AdvancedIncSubtensor1)
def put(op, node: Apply, region: RegionWriter) -> None:
    """Change what is at some positions of a copy, or add to it as often as a position comes."""
    y, positions = node.inputs[1], positions_of(node, 2)
    if getattr(op, "ignore_duplicates", False):
        raise NoText("positions that count once")
    target, first = changed_copy(region, node), region.view(positions[0])
    value = spread(region, y, first.shape + target.shape[len(positions) :])
    place, row = (View(name, target.dtype, value.ndim - 1) for name in ("place", "row"))
    change = changed(region, row, place, not op.set_instead_of_inc)
    at_positions(region, positions, target, value, change)


@c_text.register(IncSubtensor)
def put_part(op: IncSubtensor, node: Apply, region: RegionWriter) -> None:
    """Change some slices of a copy, or add to them."""
    x, y, *positions = node.inputs
    if not x.type.ndim:
        raise NoText("a part of a number")
    target = changed_copy(region, node)
    data, shape, strides = part(region, op, target, positions)
    place, value = region.let_part(target, data, shape, strides), spread(region, y, shape)
    region.line(changed(region, value, place, not op.set_instead_of_inc, dense="0"))


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


def changed(region: RegionWriter, value: View, place: View, add: bool = False, dense: str = "dense") -> str:
    """Return C that sets the elements of a view to those of another, or adds them.

    ``dense`` says how many elements follow each other in both; of none that is not known.
    """

    def one(at: str) -> str:
        new, old = (f"(({place.kind} *){view}.data)[{at}]" for view in (value, place))
        return f"{old} = {sum_of(old, new, place.dtype) if add else new};"

    if not place.ndim:
        return one("0")
    general = copy_call(value, place)
    if add:
        body = Body((whole(place),) * 2, (whole(place),), (), (sum_of("x1", "x0", place.dtype),), frozenset())
        general = call(region, body, [0], [], f"{place}.shape", [value, place, place])
    return f"if ({dense}) for (long e = 0; e < {dense}; e++) {one('e')} else {general}"


def at_positions(
    region: RegionWriter, positions: list[Variable], view: View, rows: View, change: str
) -> None:
    """Add a loop over positions in a view, and over rows; ``change`` is C, of ``place`` and ``row``."""
    views = [region.view(one) for one in positions]
    for one in views[1:]:
        region.demand_same(one.shape, views[0].shape)
    text = AT_POSITIONS.substitute(
        indices="\n".join(ONE_INDEX.substitute(kind=one.kind, axis=axis) for axis, one in enumerate(views)),
        n_axes=len(views),
        n_rest=view.ndim - len(views),
        size=np.dtype(view.dtype).itemsize,
        move=change,
    )
    region.demand(f"{region.function(text)}(&{view}, {listed(views)}, &{rows})")


def changed_copy(region: RegionWriter, node: Apply) -> View:
    """Return the view of a copy of a node's first input, or of it, which becomes the node's output."""
    (x, y, *_), (out,) = node.inputs, node.outputs
    if not x.type.dtype == y.type.dtype == out.type.dtype:
        raise NoText("a part of another dtype")
    if x.type.dtype == "bool" and not node.op.set_instead_of_inc:
        raise NoText("a sum of truth values")
    target = region.take_over(out, x, node)
    if target is None:
        view = region.view(x)
        target = region.new(out, view.shape)
        copy(region, view, target)
    return target
