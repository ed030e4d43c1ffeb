"""C texts of Ops that read or change parts of an array: at positions, or in slices."""

from __future__ import annotations

from string import Template
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import constant
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor

from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1
from synk.compile.programs.elementwise.body import Body
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.lines import Text
from synk.compile.regions.movement import part, spread
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import Variables
from synk.compile.regions.views import View, listed
from synk.compile.regions.walks import call, copy, copy_call, sum_of, whole

# The positions of a block are checked before they are used, by vector instructions, and once for all rows.
AT_POSITIONS = Template("""\
SHARED int NAME(const View *x, const View *const *positions, const View *y)
{
    const long n = positions[0]->shape[0], by = y->strides[$axis], n_rows = $n_rows;
    const View rows = {0, $rows};
    const long dense = dense_rows(x, $end, &rows, $n_rest, $size);
    for (long begin = 0; begin < n; begin += BLOCK) {
        const long m = n - begin < BLOCK ? n - begin : BLOCK;
        long steps[BLOCK] = {0};
        if ($outside)
            return 0;
        for (long r = 0; r < n_rows; r++) {
            char *const from = x->data + r * x->strides[0];
            char *const to = y->data + r * y->strides[0] + begin * by;
            for (long i = 0; i < m; i++) {
                const View place = {from + steps[i], x->shape + $end, x->strides + $end};
                const View row = {to + i * by, y->shape + $axis + 1, y->strides + $axis + 1};
                $move
            }
        }
    }
    return 1;
}
""")

# A function of its own, as it takes most of the time to compile.
FIND = Template("""\
SHARED int NAME(const View *positions, long begin, long n, long length, long step, long *steps)
{
    const long by = positions->strides[0];
    const char *const at = positions->data + begin * by;
    int outside = 0;
#define EACH(by) \\
    for (long i = 0; i < n; i++) { \\
        const long k = *(const $kind *)(at + i * (by)); \\
        outside |= (k < -length) | (k >= length); \\
        steps[i] += (k < 0 ? k + length : k) * step; \\
    }
    if (by == sizeof($kind))
        EACH(sizeof($kind))
    else
        EACH(by)
#undef EACH
    return outside;
}
""")

# Along an empty axis no position would be checked, so the region gives up, and Python checks them.
IN_EACH = Template("""\
SHARED int NAME(const View *x, const View *const *positions, const View *y)
{
    for (long i = 0; i < x->shape[0]; i++) {
        const View part = {x->data + i * x->strides[0], x->shape + 1, x->strides + 1};
        const View rows = {y->data + i * y->strides[0], y->shape + 1, y->strides + 1};
        if (!$inner(&part, positions, &rows))
            return 0;
    }
    return x->shape[0] > 0;
}
""")


class Positions(NamedTuple):
    """Vectors of positions along neighbouring axes of an array, the first of which is ``axis``."""

    axis: int
    vectors: list[Variable]

    @property
    def end(self) -> int:
        """The first axis behind those with positions."""
        return self.axis + len(self.vectors)

    def shape(self, variables: Variables, view: View) -> list[str]:
        """Return the lengths of the array that the elements at the positions of a view make up."""
        return view.shape[: self.axis] + variables.view(self.vectors[0]).shape + view.shape[self.end :]


@c_text.register(AdvancedSubtensor)
@c_text.register(AdvancedSubtensor1)
def take(op, node: Apply, region: RegionWriter) -> None:
    """Copy the elements at some positions."""
    x, (out,) = node.inputs[0], node.outputs
    view, positions = positions_in(region, region.variables.view(x), node, 1)
    target = region.variables.new(out, positions.shape(region.variables, view))
    place, row = (View(name, view.dtype, view.ndim - positions.end) for name in ("place", "row"))
    at_positions(region, positions, view, target, changed(region.text, place, row))


@c_text.register(AdvancedIncSubtensor)
@c_text.register(AdvancedIncSubtensor1)
def put(op, node: Apply, region: RegionWriter) -> None:
    """Set the elements at some positions of a copy, or add to them, once for each time a position comes."""
    y = value_of(node)
    if getattr(op, "ignore_duplicates", False):
        raise NoText("positions that count once")
    target, positions = positions_in(region, changed_copy(region, node), node, 2)
    value = spread(region, y, positions.shape(region.variables, target))
    place, row = (View(name, target.dtype, target.ndim - positions.end) for name in ("place", "row"))
    number = all(y.type.broadcastable[::-1][: place.ndim])
    change = changed(region.text, row, place, not op.set_instead_of_inc, number=number)
    at_positions(region, positions, target, value, change, number)


@c_text.register(IncSubtensor)
def put_part(op: IncSubtensor, node: Apply, region: RegionWriter) -> None:
    """Set the elements in some slices of a copy, or add to them."""
    x, _, *positions = node.inputs
    if not x.type.ndim:
        raise NoText("a part of a number")
    target = changed_copy(region, node)
    data, shape, strides = part(region, op.idx_list, target, positions)
    place, value = region.memory.subview(target, data, shape, strides), spread(region, value_of(node), shape)
    region.text.line(changed(region.text, value, place, not op.set_instead_of_inc, dense="0"))


def positions_in(region: RegionWriter, view: View, node: Apply, first: int) -> tuple[View, Positions]:
    """Return the part of a view that the slices of an index select, and the positions in that part.

    Raises NoText for an index of any other form.
    """
    inputs, entries = node.inputs[first:], getattr(node.op, "idx_list", (0,))
    axes = [axis for axis, entry in enumerate(entries) if not isinstance(entry, slice)]
    if not axes or axes[-1] - axes[0] >= len(axes):
        raise NoText("an index without positions, or with a slice between them")
    found = Positions(axes[0], [inputs[entries[axis]] for axis in axes])
    for one in found.vectors:
        if getattr(one.type, "ndim", 0) != 1 or not one.type.dtype.startswith(("int", "uint")):
            raise NoText("an index that is no vector of whole numbers")
    slices = [entry if isinstance(entry, slice) else slice(None) for entry in entries]
    if any(entry != slice(None) for entry in slices):
        view = region.memory.subview(view, *part(region, slices, view, inputs))
    return view, found


def changed(
    text: Text,
    value: View,
    place: View,
    add: bool = False,
    dense: str = "dense",
    number: bool = False,
) -> str:
    """Return C that sets the elements of the view ``place`` to those of ``value``, or adds them.

    ``dense`` is C for the number of elements if they lie one behind the other in both views, else for 0. With
    ``number`` the value is one number, and only ``place`` must lie so.
    """

    def one(at: str) -> str:
        new, old = (
            f"(({place.kind} *){view}.data)[{k}]" for view, k in ((value, 0 if number else at), (place, at))
        )
        return f"{old} = {sum_of(old, new, place.dtype) if add else new};"

    if not place.ndim:
        return one("0")
    general = copy_call(value, place)
    if add:
        body = Body((whole(place),) * 2, (whole(place),), (), (sum_of("x1", "x0", place.dtype),), frozenset())
        general = call(text, body, [0], [], f"{place}.shape", [value, place, place])
    return f"if ({dense}) for (long e = 0; e < {dense}; e++) {one('e')} else {general}"


def at_positions(
    region: RegionWriter, positions: Positions, view: View, rows: View, change: str, number: bool = False
) -> None:
    """Add a loop over positions in a view and rows of another; with ``number`` each row is one number.

    ``change`` is the C statement for each pair, of the views ``place`` and ``row``.
    """
    views = [region.variables.view(one) for one in positions.vectors]
    for one in views[1:]:
        region.text.demand_same(one.shape, views[0].shape)
    axis = min(positions.axis, 1)  # of the innermost parts, which lie along the axes before
    end = axis + len(views)
    like, first = ("x", end - 1) if number else ("y", axis)
    text = AT_POSITIONS.substitute(
        outside=" | ".join(
            f"{region.text.function(FIND.substitute(kind=one.kind))}"
            f"(positions[{k}], begin, m, x->shape[{axis + k}], x->strides[{axis + k}], steps)"
            for k, one in enumerate(views)
        ),
        axis=axis,
        end=end,
        n_rows="x->shape[0]" if axis else 1,
        rows=f"{like}->shape + {first}, {like}->strides + {first}",
        n_rest=view.ndim - positions.end,
        size=np.dtype(view.dtype).itemsize,
        move=change,
    )
    name = region.text.function(text)
    for _ in range(positions.axis - axis):
        name = region.text.function(IN_EACH.substitute(inner=name))
    region.text.demand(f"{name}(&{view}, {listed(views)}, &{rows})")


def value_of(node: Apply) -> Variable:
    """Return the value that a node sets or adds; a constant is converted to the array's dtype if it fits."""
    x, y, *_ = node.inputs
    if isinstance(y, Constant) and y.type.dtype != x.type.dtype and np.can_cast(y.type.dtype, x.type.dtype):
        y = constant(y.data, dtype=x.type.dtype)
    if not x.type.dtype == y.type.dtype == node.outputs[0].type.dtype:
        raise NoText("a part of another dtype")
    if x.type.dtype == "bool" and not node.op.set_instead_of_inc:
        raise NoText("a sum of truth values")
    return y


def changed_copy(region: RegionWriter, node: Apply) -> View:
    """Return the view of a node's output, which has the elements of the first input before they are changed.

    It is a copy, or the input itself if that lies in the region's own memory and nothing reads it later.
    """
    x, (out,) = node.inputs[0], node.outputs
    target = region.variables.take_over(out, x, node)
    if target is None:
        view = region.variables.view(x)
        target = region.variables.new(out, view.shape)
        copy(region.text, view, target)
    return target
