"""C texts of elementwise Ops and of reductions: walks over views, which compute one element at a time.

Elemwise node, and the reductions that read it -> Body, folds -> a walk
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import CAReduce, Elemwise

from synk.compile.elementwise.body import Body, Operand, apply_scalar_op, elemwise_body
from synk.compile.elementwise.dialect import TYPES
from synk.compile.elementwise.templates import carrier, is_float
from synk.compile.elementwise.writer import Value, Writer, type_name
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import Fold, loop_text, mask_of, one_element, run
from synk.compile.regions.writer import RegionWriter, type_of
from synk.native.compiler import ELEMENTARY


def fold_of(op: CAReduce, node: Apply, region: RegionWriter) -> Fold:
    """Return how a reduction combines elements; NoText if C cannot say it."""
    source, dtype = node.inputs[0].type.dtype, op.acc_dtype or node.outputs[0].type.dtype
    axes = tuple(range(node.inputs[0].type.ndim)) if op.axis is None else tuple(sorted(op.axis))
    kind = type(op.scalar_op)
    if dtype not in TYPES or source not in TYPES or is_float(source) > is_float(dtype):
        raise NoText(f"{source} summed in {dtype}")
    literal, up, low = region.dialect.literal, carrier(dtype), TYPES[dtype]
    if kind in (ps.Add, ps.Mul) and dtype != "bool":
        symbol, start = ("+", 0) if kind is ps.Add else ("*", 1)
        return Fold(dtype, axes, f"({low})({up}a {symbol} {up}b)", literal(start, dtype))
    if kind in (ps.ScalarMaximum, ps.ScalarMinimum) and source == dtype:
        symbol, largest = (">", kind is ps.ScalarMinimum) if kind is ps.ScalarMaximum else ("<", True)
        if is_float(dtype):
            return Fold(
                dtype, axes, f"b {symbol} a || b != b ? b : a", literal(np.inf if largest else -np.inf, dtype)
            )
        ends = (False, True) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return Fold(dtype, axes, f"b {symbol} a ? b : a", literal(ends[largest], dtype))
    if kind in (ps.AND, ps.OR) and source == dtype == "bool":
        symbol, start = ("&", True) if kind is ps.AND else ("|", False)
        return Fold(dtype, axes, f"a {symbol} b", literal(start, dtype))
    raise NoText(f"no C text for {op}")


@c_text.register(Elemwise)
def elementwise(op: Elemwise, node: Apply, region: RegionWriter) -> None:
    """A loop, or a few lines where there are no axes; reductions that alone read the results join it."""
    body = elemwise_body(node, region.dialect)
    declare(region, body)
    if not body.ndim:
        numbers = [region.number(variable) for variable in node.inputs]
        _in_place_of_loop(region, node, body, numbers)
        return
    readers = [_folds(region, variable) for variable in node.outputs]
    folds = [(k, *one) for k, (_, ones) in enumerate(readers) for one in ones]
    stored = [k for k, (kept, _) in enumerate(readers) if kept]
    loop(region, node.inputs, body, [(k, node.outputs[k]) for k in stored], folds)


@c_text.register(ScalarOp)
def scalar(op: ScalarOp, node: Apply, region: RegionWriter) -> None:
    """A line, or a few."""
    write = Writer(region.dialect)
    inputs = [Value(region.number(variable), variable.type.dtype) for variable in node.inputs]
    names = [Value(f"x{k}", value.dtype) for k, value in enumerate(inputs)]
    results = apply_scalar_op(op, write, names, [variable.type.dtype for variable in node.outputs])
    operands = tuple(Operand(value.dtype, ()) for value in inputs)
    outputs = tuple(Operand(variable.type.dtype, ()) for variable in node.outputs)
    body = Body(operands, outputs, tuple(write.lines), tuple(map(str, results)), frozenset(write.functions))
    declare(region, body)
    _in_place_of_loop(region, node, body, [value.text for value in inputs])


def _in_place_of_loop(region: RegionWriter, node: Apply, body: Body, numbers: Sequence[str]) -> None:
    name = region.function(one_element(body))
    places = []
    for variable in node.outputs:
        place = region.let_later(type_of(variable))
        places.append(place)
    region.line(f"{name}({', '.join([*numbers, *(f'&{place}' for place in places)])});")
    for variable, place in zip(node.outputs, places, strict=True):
        region.bind(variable, place)


@c_text.register(CAReduce)
def reduction(op: CAReduce, node: Apply, region: RegionWriter) -> None:
    """A loop that folds what is there."""
    (source,) = node.inputs
    fold = fold_of(op, node, region)
    pattern = tuple(source.type.broadcastable)
    body = Body(
        (Operand(source.type.dtype, pattern),),
        (Operand(source.type.dtype, pattern),),
        (),
        ("x0",),
        frozenset(),
    )
    loop(region, [source], body, [], [(0, node, fold)])


def _folds(region: RegionWriter, variable: Variable) -> tuple[bool, list[tuple[Apply, Fold]]]:
    """Tell whether a variable must be there for others than reductions, and return those that can join."""
    found: list[tuple[Apply, Fold]] = []
    kept = region.is_kept(variable)
    for reader in region.uses.get(variable, []):
        if isinstance(reader.op, CAReduce):
            try:
                found.append((reader, fold_of(reader.op, reader, region)))
                continue
            except NoText:
                pass
        kept = True
    return kept or not found, found


def declare(region: RegionWriter, body: Body) -> None:
    """Declare the functions of the mathematical library that a body calls."""
    for function, dtype, n_arguments in body.functions:
        kind, suffix = type_name(dtype), "f" if dtype == "float32" else ""
        vector = function in region.dialect.functions & ELEMENTARY
        attribute = '__attribute__((simd("notinbranch"))) ' if vector else ""
        region.declarations.add(f"{attribute}{kind} {function}{suffix}({', '.join([kind] * n_arguments)});")


def loop(
    region: RegionWriter,
    inputs: Sequence[Variable],
    body: Body,
    stored: Sequence[tuple[int, Variable]],
    folds: Sequence[tuple[int, Apply, Fold]],
) -> None:
    """Add a loop that stores some results and folds some."""
    views, ndim = [region.view(variable) for variable in inputs], body.ndim
    masks = [mask_of(operand.broadcast) for operand in body.inputs]
    shape = region.let_array(ndim)
    array = f"(const View *const[]){{{', '.join(f'&{view}' for view in views)}}}"
    fixed = f"(const long[]){{{', '.join(map(str, masks))}}}"
    if views:
        region.demand(f"common_shape({len(views)}, {ndim}, {array}, {fixed}, {shape})")
    full = [k for k, operand in enumerate(body.inputs) if not any(operand.broadcast)]
    outputs, targets = [], []
    for _, variable in stored:
        outputs.append(region.new(variable, shape, like=views[full[0]] if full and ndim > 1 else None))
    for _, node, fold in folds:
        targets.append(_folded(region, node, fold, shape, views[full[0]] if full else None))
        region.done.add(node)
    operands = [*views, *outputs, *(view for view, _ in targets)]
    name = region.function(loop_text(body, [k for k, _ in stored], [(k, fold) for k, _, fold in folds]))
    region.line(f"{name}({shape}, (const View *const[]){{{', '.join(f'&{view}' for view in operands)}}});")
    for _, finish in targets:
        finish()


def _folded(
    region: RegionWriter, node: Apply, fold: Fold, shape: str, model: str | None
) -> tuple[str, Callable[[], None]]:
    """Make room for a reduction's result: return its view, with all axes, and what makes it the result.

    Its axes lie in the order of those of the view ``model``, so that both are walked alike.
    """
    output, kind, ndim = node.outputs[0], TYPES[fold.dtype], node.inputs[0].type.ndim
    kept = [axis for axis in range(ndim) if axis not in fold.axes]
    if fold.chooses and not hasattr(node.tag, "of_nothing"):
        # Nothing is the largest of no elements.
        for axis in fold.axes:
            region.demand(f"{shape}[{axis}]")
    if not kept:
        place = region.let_later(kind, fold.start)
        return region.let_view(f"&{place}", "0", "0"), lambda: _have_cast(region, output, place, fold.dtype)
    cast = fold.dtype != output.type.dtype
    lengths = region.let_array(len(kept), [f"{shape}[{axis}]" for axis in kept])
    like = None
    if model is not None and len(kept) > 1:
        steps = region.let_array(len(kept), [f"{model}.strides[{axis}]" for axis in kept])
        like = region.let_view(f"{model}.data", lengths, steps)
    if cast:
        target = region.scratch(len(kept), fold.dtype, lengths, like=like)
    else:
        target = region.new(output, lengths, like)
    pattern = tuple(output.type.broadcastable)
    run(region, _made(fold.dtype, pattern, fold.start), [target])
    places = {axis: f"{target}.strides[{k}]" for k, axis in enumerate(kept)}
    strides = region.let_array(ndim, [places.get(axis, "0") for axis in range(ndim)])
    view = region.let_view(f"{target}.data", shape, strides)

    def finish() -> None:
        if cast:
            run(region, _cast(region, fold.dtype, output), [target, region.new(output, lengths, like)])

    return view, finish


def _have_cast(region: RegionWriter, variable: Variable, place: str, dtype: str) -> None:
    """Write a number in the dtype of a variable."""
    write = Writer(region.dialect)
    value = write.cast(Value("x0", dtype), variable.type.dtype)
    if value.text == "x0":
        region.bind(variable, place)
        return
    body = Body(
        (Operand(dtype, ()),),
        (Operand(variable.type.dtype, ()),),
        tuple(write.lines),
        (value.text,),
        frozenset(),
    )
    target = region.let_later(type_of(variable))
    region.line(f"{region.function(one_element(body))}({place}, &{target});")
    region.bind(variable, target)


def _made(dtype: str, pattern: tuple[bool, ...], value: str) -> Body:
    """Return the body that sets all elements to one value."""
    return Body((), (Operand(dtype, pattern),), (), (value,), frozenset())


def _cast(region: RegionWriter, dtype: str, variable: Variable) -> Body:
    """Return the body that converts elements."""
    write, pattern = Writer(region.dialect), tuple(variable.type.broadcastable)
    value = write.cast(Value("x0", dtype), variable.type.dtype)
    operands = (Operand(dtype, pattern),), (Operand(variable.type.dtype, pattern),)
    return Body(*operands, tuple(write.lines), (value.text,), frozenset())
