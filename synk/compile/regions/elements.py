"""C texts of elementwise Ops and of reductions: loops over views that compute one element at a time.

Elemwise node, and the reductions that read it -> Body, folds -> a walk
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import CAReduce, Elemwise

from synk.compile.native.compiler import ELEMENTARY
from synk.compile.native.special import SPECIAL, TABLE, special_text
from synk.compile.programs.elementwise.body import Body, Operand, elemwise_body
from synk.compile.programs.elementwise.chain_writer import Value, Writer, type_name
from synk.compile.programs.elementwise.dialect import TYPES, Dialect, with_slower
from synk.compile.programs.elementwise.templates import carrier, is_float
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.lines import Text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.views import View
from synk.compile.regions.walks import Fold, call, common_shape, fill, one_element


def fold_of(op: CAReduce, node: Apply, dialect: Dialect) -> Fold:
    """Return how a reduction combines two elements, as C; raise NoText if there is none."""
    source, dtype = node.inputs[0].type.dtype, op.acc_dtype or node.outputs[0].type.dtype
    axes = tuple(range(node.inputs[0].type.ndim)) if op.axis is None else tuple(sorted(op.axis))
    kind = type(op.scalar_op)
    if dtype not in TYPES or source not in TYPES or is_float(source) > is_float(dtype):
        raise NoText(f"{source} summed in {dtype}")
    literal, up, low = dialect.literal, carrier(dtype), TYPES[dtype]
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
    """Write a loop over elements, or one call where there are no axes.

    Reductions that read a result are computed in the same loop; a result that nothing else reads is not
    stored.
    """
    few = region.text.in_loop or not node.outputs[0].type.ndim
    body = elemwise_body(node, with_slower(region.dialect) if few else region.dialect)
    declare(region.text, region.dialect, body)
    if not body.ndim:
        numbers(region, node.inputs, body, node.outputs)
        return
    readers = [_folds(region, variable) for variable in node.outputs]
    folds = [(k, *one) for k, (_, ones) in enumerate(readers) for one in ones]
    stored = [k for k, (kept, _) in enumerate(readers) if kept]
    loop(region, node.inputs, body, [(k, node.outputs[k]) for k in stored], folds)


@c_text.register(ScalarOp)
def scalar(op: ScalarOp, node: Apply, region: RegionWriter) -> None:
    """Write the call of a scalar Op that computes a number from numbers."""
    body = elemwise_body(node, with_slower(region.dialect))
    declare(region.text, region.dialect, body)
    numbers(region, node.inputs, body, node.outputs)


def numbers(
    region: RegionWriter, inputs: Sequence[Variable], body: Body, outputs: Sequence[Variable]
) -> None:
    """Add the call that computes one element of each output, for variables without axes."""
    places = [region.text.declare_variable(type_of(variable)) for variable in outputs]
    constants = [text for _, text in body.constants]
    arguments = [*map(region.variables.number, inputs), *constants, *(f"&{place}" for place in places)]
    region.text.line(f"{region.text.function(one_element(body))}({', '.join(arguments)});")
    if body.repeats:
        region.text.repeats()
    for variable, place in zip(outputs, places, strict=True):
        region.variables.bind(variable, place)


@c_text.register(CAReduce)
def reduction(op: CAReduce, node: Apply, region: RegionWriter) -> None:
    """Write a loop that reads elements from memory and folds them."""
    (source,) = node.inputs
    fold = fold_of(op, node, region.dialect)
    operand = Operand(source.type.dtype, tuple(source.type.broadcastable))
    body = Body((operand,), (operand,), (), ("x0",), frozenset())
    loop(region, [source], body, [], [(0, node, fold)])


def _folds(region: RegionWriter, variable: Variable) -> tuple[bool, list[tuple[Apply, Fold]]]:
    """Return whether a variable must be stored, and reductions of it that the same loop can compute.

    It must be stored if anything else than these reductions reads it.
    """
    found: list[tuple[Apply, Fold]] = []
    kept = region.liveness.is_kept(variable)
    for reader in region.liveness.readers(variable):
        if isinstance(reader.op, CAReduce):
            try:
                found.append((reader, fold_of(reader.op, reader, region.dialect)))
                continue
            except NoText:
                pass
        kept = True
    return kept or not found, found


def declare(text: Text, dialect: Dialect, body: Body) -> None:
    """Declare the functions of the mathematical library that the body of a loop calls."""
    # Sorted: a set has another order in another process, and compiled libraries are found by their text.
    for function, dtype, n_arguments in sorted(body.functions):
        kind, suffix = type_name(dtype), "f" if dtype == "float32" else ""
        if function in SPECIAL:
            text.declarations[TABLE] = None
            text.declarations[special_text(function, kind)] = None
            continue
        vector = function in dialect.functions & ELEMENTARY
        attribute = '__attribute__((simd("notinbranch"))) ' if vector else ""
        arguments = ", ".join([kind] * n_arguments)
        text.declarations[f"{attribute}{kind} {function}{suffix}({arguments});"] = None


def loop(
    region: RegionWriter,
    inputs: Sequence[Variable],
    body: Body,
    stored: Sequence[tuple[int, Variable]],
    folds: Sequence[tuple[int, Apply, Fold]],
) -> None:
    """Add a loop that computes the body for each element, stores some of its results, and folds some.

    ``stored`` are pairs of a result's number and the variable that it becomes. ``folds`` are a result's
    number, the reduction that reads it, and how that combines elements.
    """
    views, ndim = [region.variables.view(variable) for variable in inputs], body.ndim
    shape = region.text.declare_array(["0"] * ndim)
    patterns = [operand.broadcast for operand in body.inputs]
    if views:
        region.text.demand(common_shape(views, patterns, shape))
    model = next((view for view, fixed in zip(views, patterns, strict=True) if not any(fixed)), None)
    outputs = [region.variables.new(variable, shape, model if ndim > 1 else None) for _, variable in stored]
    targets = [_folded(region, node, fold, shape, model) for _, node, fold in folds]
    views += [*outputs, *(spread for spread, _ in targets)]
    stores, of_folds = [k for k, _ in stored], [(k, fold) for k, _, fold in folds]
    region.text.line(call(region.text, body, stores, of_folds, shape, views))
    if body.repeats:
        region.text.repeats()
    for (_, node, fold), (_, total) in zip(folds, targets, strict=True):
        region.done.add(node)
        if fold.dtype != node.outputs[0].type.dtype:
            cast(region, total, fold.dtype, node.outputs[0])


def _folded(
    region: RegionWriter, node: Apply, fold: Fold, shape: str, model: View | None
) -> tuple[View, Variable]:
    """Return the view in which a fold collects elements, and the variable of the reduction's result.

    The view has the axes of the input, with stride 0 along those that are folded, so that all elements along
    them are added to one. Its other axes lie in memory in the order of those of the view ``model``, since the
    loop walks over both at the same time.
    """
    (output,), ndim = node.outputs, node.inputs[0].type.ndim
    kept = [axis for axis in range(ndim) if axis not in fold.axes]
    if fold.chooses and not hasattr(node.tag, "of_nothing"):
        # There is no largest of no elements: Python raises the error.
        for axis in fold.axes:
            region.text.demand(f"{shape}[{axis}]")
    total = output if fold.dtype == output.type.dtype else output.type.clone(dtype=fold.dtype)()
    if not kept:
        region.variables.bind(total, region.text.declare_variable(TYPES[fold.dtype], fold.start))
        return region.text.number_view(fold.dtype, region.variables.number(total)), total
    lengths = [f"{shape}[{axis}]" for axis in kept]
    like = None
    if model is not None and len(kept) > 1:
        like = region.text.declare_view(
            fold.dtype, model.at(), lengths, [model.strides[axis] for axis in kept]
        )
    target = region.variables.new(total, lengths, like)
    fill(region.text, target, fold.start)
    steps = dict(zip(kept, target.strides, strict=True))
    every = [f"{shape}[{axis}]" for axis in range(ndim)]
    return region.text.declare_view(
        fold.dtype, target.at(), every, [steps.get(k, "0") for k in range(ndim)]
    ), total


def cast(region: RegionWriter, source: Variable, dtype: str, target: Variable) -> None:
    """Add a loop that converts a reduction's result from its accumulator's dtype to the declared one."""
    write, pattern = Writer(region.dialect), tuple(target.type.broadcastable)
    value = write.cast(Value("x0", dtype), target.type.dtype)
    operands = (Operand(dtype, pattern),), (Operand(target.type.dtype, pattern),)
    body = Body(*operands, tuple(write.lines), (value.text,), frozenset())
    if pattern:
        loop(region, [source], body, [(0, target)], [])
    else:
        numbers(region, [source], body, [target])
