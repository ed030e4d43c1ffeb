"""C texts of Ops that make arrays: joins, rows at positions, changed copies, values again and again."""

from __future__ import annotations

from string import Template

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Join
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor

from synk.compile.compat import AdvancedIncSubtensor1, AdvancedSubtensor1, join_pieces
from synk.compile.elementwise.body import Body, Operand
from synk.compile.regions.movement import part
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copied, copy, loop_text, run, sum_of
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
        copy(region, view, place, plain(out))
        region.line(f"{at} += {view}.shape[{axis}];")


def plain(variable: Variable) -> Operand:
    """Return an operand with the dtype of a variable none of whose axes is known to be of length one."""
    return Operand(variable.type.dtype, (False,) * variable.type.ndim)


@c_text.register(Alloc)
def alloc(op: Alloc, node: Apply, region: RegionWriter) -> None:
    """A value again and again."""
    value, *lengths = node.inputs
    (out,) = node.outputs
    shape = region.let_array(len(lengths), [region.number(length) for length in lengths])
    ndim, own = len(lengths), value.type.ndim
    for k in range(ndim):
        region.demand(f"{shape}[{k}] >= 0")
    if not ndim:
        region.same(out, value)
        return
    view, steps = region.view(value), []
    for k in range(own):
        axis = ndim - own + k
        if value.type.broadcastable[k]:
            steps.append("0")
        else:
            region.demand(f"{view}.shape[{k}] == {shape}[{axis}]")
            steps.append(f"{view}.strides[{k}]")
    strides = region.let_array(ndim, ["0"] * (ndim - own) + steps)
    source = region.let_view(f"{view}.data", shape, strides)
    copy(region, source, region.new(out, shape), plain(out))


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
    if not all(variable.type.dtype.startswith(("int", "uint")) for variable in (*node.inputs, out)):
        raise NoText("numbers that are not whole")
    start, stop, step = [region.let("long", region.number(variable)) for variable in node.inputs]
    region.demand(f"{step} != 0")
    count = region.let(
        "long",
        f"{step} > 0 ? ({start} < {stop} ? ({stop} - {start} - 1) / {step} + 1 : 0) "
        f": ({stop} < {start} ? ({start} - {stop} - 1) / -{step} + 1 : 0)",
    )
    target, kind = region.new(out, [count]), type_of(out)
    region.line(f"for (long i = 0; i < {count}; i++)")
    region.line(f"    *({kind} *)({target}.data + i * {target}.strides[0]) = {start} + i * {step};")


# --- rows at positions -------------------------------------------------------------------------------

AT_ROWS = Template("""\
SHARED int NAME(const View *x, const View *rows, const View *y)
{
    const long n = rows->shape[0], length = x->shape[0], step = x->strides[0];
    for (long i = 0; i < n; i++) {
        long at = *(const $index *)(rows->data + i * rows->strides[0]);
        at += at < 0 ? length : 0;
        if (at < 0 || at >= length)
            return 0;
        $move
    }
    return 1;
}
""")


def rows_of(node: Apply, position: int) -> Variable:
    """Return the positions of rows, if there are no others; NoText if there are."""
    op, rows = node.op, node.inputs[position]
    if not isinstance(op, AdvancedSubtensor1 | AdvancedIncSubtensor1) and (
        len(node.inputs) != position + 1 or tuple(op.idx_list) != (0,)
    ):
        raise NoText("an index of several parts")
    if getattr(rows.type, "ndim", 0) != 1 or not rows.type.dtype.startswith(("int", "uint")):
        raise NoText("an index that is no vector of whole numbers")
    return rows


@c_text.register(AdvancedSubtensor)
@c_text.register(AdvancedSubtensor1)
def take_rows(op, node: Apply, region: RegionWriter) -> None:
    """A copy of rows, or of elements."""
    if are_elements(node, 1):
        view, (out,) = region.view(node.inputs[0]), node.outputs
        target = region.new(out, [f"{region.view(node.inputs[1])}.shape[0]"])
        kind = type_of(out)
        at_elements(
            region, node, 1, view, target, f"*({kind} *)(y->data + i * y->strides[0]) = *({kind} *)at;"
        )
        return
    x, rows, (out,) = node.inputs[0], rows_of(node, 1), node.outputs
    view, kind = region.view(x), type_of(x)
    at, ndim = region.view(rows), x.type.ndim
    target = region.new(out, [f"{at}.shape[0]", *(f"{view}.shape[{k}]" for k in range(1, ndim))])
    if ndim == 1:
        move = f"*({kind} *)(y->data + i * y->strides[0]) = *(const {kind} *)(x->data + at * step);"
    else:
        move = row_by_row(region, x, "x->data + at * step", "x", "y->data + i * y->strides[0]", "y")
    name = region.function(AT_ROWS.substitute(index=type_of(rows), move=move))
    region.demand(f"{name}(&{view}, &{at}, &{target})")


def are_elements(node: Apply, position: int) -> bool:
    """Tell whether an index has a vector of positions for each axis, and there are several."""
    indices, op = node.inputs[position:], node.op
    return (
        not isinstance(op, AdvancedSubtensor1 | AdvancedIncSubtensor1)
        and len(indices) == node.inputs[0].type.ndim > 1
        and tuple(op.idx_list) == tuple(range(len(indices)))
        and all(
            getattr(index.type, "ndim", 0) == 1 and index.type.dtype.startswith(("int", "uint"))
            for index in indices
        )
    )


AT_ELEMENTS = Template("""\
SHARED int NAME(const View *x, const View *const *positions, const View *y)
{
    const long n = positions[0]->shape[0];
    for (long i = 0; i < n; i++) {
        char *at = x->data;
        long k;
$indices
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


def at_elements(region: RegionWriter, node: Apply, position: int, view: str, other: str, move: str) -> None:
    """Add a loop over elements at positions: ``move`` is what is done with the one ``at`` which is ``i``."""
    indices = node.inputs[position:]
    views = [region.view(index) for index in indices]
    for one in views[1:]:
        region.demand(f"{one}.shape[0] == {views[0]}.shape[0]")
    lines = [ONE_INDEX.substitute(kind=type_of(index), axis=axis) for axis, index in enumerate(indices)]
    name = region.function(AT_ELEMENTS.substitute(indices="\n".join(lines), move=move))
    listed = ", ".join(f"&{one}" for one in views)
    region.demand(f"{name}(&{view}, (const View *const[]){{{listed}}}, &{other})")


def scatter_elements(op, node: Apply, region: RegionWriter) -> None:
    """Add a copy with elements set, or increased."""
    x, y = node.inputs[:2]
    dtype, kind = x.type.dtype, type_of(x)
    if dtype != y.type.dtype or getattr(op, "ignore_duplicates", False) or y.type.ndim > 1 or dtype == "bool":
        raise NoText("elements of another dtype, or increased once")
    target, value = changed_copy(region, node), region.view(y)
    if y.type.ndim == 0 or y.type.broadcastable[0]:
        source = f"*(const {kind} *)y->data"
    else:
        region.demand(f"{value}.shape[0] == {region.view(node.inputs[2])}.shape[0]")
        source = f"*(const {kind} *)(y->data + i * y->strides[0])"
    new = source if op.set_instead_of_inc else sum_of(f"*({kind} *)at", source, dtype)
    at_elements(region, node, 2, target, value, f"*({kind} *)at = {new};")


def row_by_row(region: RegionWriter, x: Variable, source: str, of: str, target: str, to: str) -> str:
    """Return the line that copies one row."""
    operand = Operand(x.type.dtype, (False,) * (x.type.ndim - 1))
    name = region.function(loop_text(copied(operand), [0], []))
    return (
        f"{name}({to}->shape + 1, (const View *const[]){{"
        f"&(View){{{source}, {of}->shape + 1, {of}->strides + 1}}, "
        f"&(View){{{target}, {to}->shape + 1, {to}->strides + 1}}}});"
    )


def changed_copy(region: RegionWriter, node: Apply) -> str:
    """Return the view of a copy of a node's first input, or of it, which becomes the node's output."""
    x, (out,) = node.inputs[0], node.outputs
    if x.type.dtype != out.type.dtype:
        raise NoText("a copy in another dtype")
    view = region.view(x)
    target = region.take_over(out, x, node)
    if target is None:
        target = region.new(out, [f"{view}.shape[{k}]" for k in range(x.type.ndim)])
        copy(region, view, target, plain(out))
    return target


@c_text.register(IncSubtensor)
def write_part(op: IncSubtensor, node: Apply, region: RegionWriter) -> None:
    """A copy with some rows set, or increased."""
    x, y, *positions = node.inputs
    if x.type.dtype != y.type.dtype or not x.type.ndim:
        raise NoText("a part of another dtype")
    if not op.set_instead_of_inc and x.type.dtype == "bool":
        raise NoText("a sum of truth values")
    target = changed_copy(region, node)
    data, shape, strides = part(region, op, target, x.type.ndim, positions)
    ndim, own, value = len(shape), y.type.ndim, region.view(y)
    if own > ndim:
        raise NoText("a value with more axes than its place")
    lengths, steps = region.let_array(ndim, shape), []
    for k in range(own):
        axis = ndim - own + k
        if y.type.broadcastable[k]:
            steps.append("0")
        else:
            region.demand(f"{value}.shape[{k}] == {lengths}[{axis}]")
            steps.append(f"{value}.strides[{k}]")
    place = region.let_view(data, lengths, region.let_array(ndim, strides))
    spread = region.let_array(ndim, ["0"] * (ndim - own) + steps)
    source = region.let_view(f"{value}.data", lengths, spread)
    operand = Operand(x.type.dtype, (False,) * ndim)
    if not ndim:
        symbol = "=" if op.set_instead_of_inc else "+="
        region.line(f"*({type_of(x)} *){place}.data {symbol} *(const {type_of(x)} *){source}.data;")
    elif op.set_instead_of_inc:
        run(region, copied(operand), [source, place])
    else:
        added = Body((operand, operand), (operand,), (), (sum_of("x0", "x1", x.type.dtype),), frozenset())
        run(region, added, [place, source, place])


@c_text.register(AdvancedIncSubtensor)
@c_text.register(AdvancedIncSubtensor1)
def scatter_rows(op, node: Apply, region: RegionWriter) -> None:
    """A copy with rows, or elements, at positions set, or increased: those that come twice, twice."""
    if are_elements(node, 2):
        scatter_elements(op, node, region)
        return
    x, y, rows = node.inputs[0], node.inputs[1], rows_of(node, 2)
    dtype = x.type.dtype
    if dtype != y.type.dtype or getattr(op, "ignore_duplicates", False):
        raise NoText("a part of another dtype, or increased once")
    if not op.set_instead_of_inc and dtype == "bool":
        raise NoText("a sum of truth values")
    ndim, own = x.type.ndim, y.type.ndim
    if ndim > 1 and (own != ndim or any(y.type.broadcastable)):
        raise NoText("rows that are spread")
    target, at, value, kind = changed_copy(region, node), region.view(rows), region.view(y), type_of(x)
    if ndim == 1:
        if own == 0 or y.type.broadcastable[0]:
            source = f"*(const {kind} *)y->data"
        else:
            region.demand(f"{value}.shape[0] == {at}.shape[0]")
            source = f"*(const {kind} *)(y->data + i * y->strides[0])"
        new = source if op.set_instead_of_inc else sum_of("*place", source, dtype)
        move = f"{kind} *place = ({kind} *)(x->data + at * step); *place = {new};"
    else:
        region.demand(f"{value}.shape[0] == {at}.shape[0]")
        for k in range(1, ndim):
            region.demand(f"{value}.shape[{k}] == {target}.shape[{k}]")
        operand = Operand(dtype, (False,) * (ndim - 1))
        if op.set_instead_of_inc:
            body, first = copied(operand), ""
        else:
            body = Body((operand, operand), (operand,), (), (sum_of("x0", "x1", dtype),), frozenset())
            first = "&place, "
        name = region.function(loop_text(body, [0], []))
        move = (
            "const View place = {x->data + at * step, x->shape + 1, x->strides + 1}; "
            "const View row = {y->data + i * y->strides[0], y->shape + 1, y->strides + 1}; "
            f"{name}(place.shape, (const View *const[]){{{first}&row, &place}});"
        )
    name = region.function(AT_ROWS.substitute(index=type_of(rows), move=move))
    region.demand(f"{name}(&{target}, &{at}, &{value})")
