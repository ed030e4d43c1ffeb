"""C texts of Ops that move no element, or say where elements are: views, shapes and their numbers."""

from __future__ import annotations

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type_other import NoneTypeT

from synk.compile.compat import known_axis
from synk.compile.elementwise.body import Operand
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy
from synk.compile.regions.writer import RegionWriter, type_of


@c_text.register(DimShuffle)
def dimshuffle(op: DimShuffle, node: Apply, region: RegionWriter) -> None:
    """Axes in another order, some new, some gone."""
    (x,), (out,) = node.inputs, node.outputs
    view = region.view(x)
    for axis in set(range(x.type.ndim)) - {*op.new_order}:
        region.demand(f"{region.length(x, axis)} == 1")
    shape = ["1" if axis == "x" else f"{view}.shape[{axis}]" for axis in op.new_order]
    strides = ["0" if axis == "x" else f"{view}.strides[{axis}]" for axis in op.new_order]
    region.know_view(out, x, f"{view}.data", shape, strides)


@c_text.register(Split)
def split(op: Split, node: Apply, region: RegionWriter) -> None:
    """Parts along an axis, one after another."""
    axis, others = known_axis(node, 1)
    x, lengths = node.inputs[0], region.lengths(node.inputs[others[-1]])
    if axis is None or len(lengths) != len(node.outputs):
        raise NoText("a split along nobody knows which axis")
    view, at, axis = region.view(x), "0", axis % x.type.ndim
    for variable, length in zip(node.outputs, lengths, strict=True):
        region.demand(f"{length} >= 0")
        shape = [length if k == axis else f"{view}.shape[{k}]" for k in range(x.type.ndim)]
        strides = [f"{view}.strides[{k}]" for k in range(x.type.ndim)]
        region.know_view(variable, x, f"{view}.data + ({at}) * {view}.strides[{axis}]", shape, strides)
        at = f"{at} + {length}"
    region.demand(f"{at} == {view}.shape[{axis}]")


@c_text.register(CheckAndRaise)
def checked(op: CheckAndRaise, node: Apply, region: RegionWriter) -> None:
    """The same value; the region gives up unless all conditions hold, and Python says which does not."""
    value, *conditions = node.inputs
    type_of(value)  # or else it has no text
    for one in conditions:
        if type_of(one) and one.type.ndim:
            raise NoText("a condition with axes")
        region.demand(region.number(one))
    region.same(node.outputs[0], value)


@c_text.register(Shape_i)
def one_length(op: Shape_i, node: Apply, region: RegionWriter) -> None:
    """A length."""
    region.know_number(node.outputs[0], region.length(node.inputs[0], op.i))


@c_text.register(Shape)
def all_lengths(op: Shape, node: Apply, region: RegionWriter) -> None:
    """The lengths."""
    (x,) = node.inputs
    region.know_lengths(node.outputs[0], [region.length(x, axis) for axis in range(x.type.ndim)])


@c_text.register(MakeVector)
def make_vector(op: MakeVector, node: Apply, region: RegionWriter) -> None:
    """Numbers as a vector."""
    (out,) = node.outputs
    numbers = [region.number(variable) for variable in node.inputs]
    if out.type.dtype != "int64" or any(variable.type.dtype != "int64" for variable in node.inputs):
        region.write_numbers(out, numbers)
    else:
        region.know_lengths(out, numbers)


@c_text.register(ScalarFromTensor)
@c_text.register(TensorFromScalar)
def as_number(op, node: Apply, region: RegionWriter) -> None:
    """The same number."""
    region.same(node.outputs[0], node.inputs[0])


@c_text.register(SpecifyShape)
def specify_shape(op: SpecifyShape, node: Apply, region: RegionWriter) -> None:
    """The same elements."""
    x, *lengths = node.inputs
    for axis, length in enumerate(lengths):
        if not isinstance(length.type, NoneTypeT):
            region.demand(f"{region.view(x)}.shape[{axis}] == {region.number(length)}")
    region.same(node.outputs[0], x)


@c_text.register(Reshape)
def reshape(op: Reshape, node: Apply, region: RegionWriter) -> None:
    """The same elements in C order: a view where they lie so, else a copy."""
    x, shape = node.inputs
    lengths = region.lengths(shape)
    if len(lengths) != node.outputs[0].type.ndim:
        raise NoText("a shape of another length")
    total = region.let("long", f"elements({x.type.ndim}, {region.view(x)}.shape)" if x.type.ndim else "1")
    target = region.let_array(len(lengths), lengths)
    region.demand(f"fill_in({len(lengths)}, {target}, {total})")
    regrouped(region, node, target, len(lengths))


@c_text.register(JoinDims)
@c_text.register(SplitDims)
def regroup_axes(op, node: Apply, region: RegionWriter) -> None:
    """Neighbouring axes as one, or one as several."""
    x, (out,) = node.inputs[0], node.outputs
    if isinstance(op, JoinDims):
        start, n = op.start_axis, op.n_axes
        own = [region.length(x, axis) for axis in range(x.type.ndim)]
        lengths = [*own[:start], " * ".join(own[start : start + n]) or "1", *own[start + n :]]
    else:
        own = [region.length(x, axis) for axis in range(x.type.ndim)]
        given = region.lengths(node.inputs[1])
        lengths = [*own[: op.axis], *given, *own[op.axis + 1 :]]
    if len(lengths) != out.type.ndim:
        raise NoText("a shape of another length")
    total = region.let("long", f"elements({x.type.ndim}, {region.view(x)}.shape)")
    target = region.let_array(len(lengths), [f"(long)({length})" for length in lengths])
    region.demand(f"fill_in({len(lengths)}, {target}, {total})")
    regrouped(region, node, target, len(lengths))


def regrouped(region: RegionWriter, node: Apply, target: str, n: int) -> None:
    """Say that a node's output has the elements of its first input, in C order, and lengths ``target``."""
    x, (out,) = node.inputs[0], node.outputs
    if not n:
        region.know_number(out, f"*({region.kind(x)} *){region.view(x)}.data")
        return
    ndim, size, view = x.type.ndim, np.dtype(x.type.dtype).itemsize, region.view(x)
    strides = region.let_array(n)
    operand = Operand(x.type.dtype, tuple(x.type.broadcastable))
    # Memory of its own is taken where the elements do not lie in order; a view is all it costs elsewhere.
    lengths = region.let_array(ndim, [f"{view}.shape[{axis}]" for axis in range(ndim)])
    in_order = region.let("int", f"regroup({ndim}, &{view}, {size}, {n}, {target}, {strides})")
    region.know_regrouped(
        out, x, in_order, target, strides, lengths, lambda a, b: copy(region, a, b, operand)
    )


@c_text.register(Subtensor)
def subtensor(op: Subtensor, node: Apply, region: RegionWriter) -> None:
    """Some rows, or one: a view."""
    x, *positions = node.inputs
    if x not in region.known_lengths or not all(isinstance(position, Constant) for position in positions):
        view = region.view(x)
        data, shape, strides = part(region, op, view, x.type.ndim, positions)
        region.know_view(node.outputs[0], x, data, shape, strides)
        return
    (index,), lengths = op.idx_list, region.lengths(x)

    def constant(entry):
        return None if entry is None else int(positions[entry].data)

    if isinstance(index, slice):
        some = slice(*map(constant, (index.start, index.stop, index.step)))
        region.know_lengths(node.outputs[0], lengths[some])
    else:
        try:
            region.know_number(node.outputs[0], lengths[constant(index)])
        except IndexError:
            raise NoText("no such length") from None


def part(region: RegionWriter, op, view: str, ndim: int, positions) -> tuple[str, list[str], list[str]]:
    """Return where a part of a view lies, and its lengths and strides; ``positions`` are index inputs."""
    data, shape, strides = [f"{view}.data"], [], []

    def number(entry):
        text = region.number(positions[entry])
        if positions[entry].type.dtype == "uint64":
            text = f"({text} > __LONG_MAX__ ? __LONG_MAX__ : {text})"
        return f"(long){text}"

    def end(entry):
        return "ABSENT" if entry is None else f"end({number(entry)})"

    for axis, entry in enumerate(op.idx_list):
        length, step = f"{view}.shape[{axis}]", f"{view}.strides[{axis}]"
        if isinstance(entry, slice):
            if entry == slice(None):
                shape.append(length)
                strides.append(step)
                continue
            first, count = region.let_later("long"), region.let_later("long")
            by = region.let("long", "1" if entry.step is None else number(entry.step))
            ends = f"{end(entry.start)}, {end(entry.stop)}"
            region.demand(f"slice({length}, {ends}, {by}, &{first}, &{count})")
            data.append(f"{first} * {step}")
            shape.append(count)
            strides.append(f"{by} * {step}")
        else:
            at = region.let("long", number(entry))
            region.demand(f"{at} >= -{length} && {at} < {length}")
            data.append(f"({at} < 0 ? {at} + {length} : {at}) * {step}")
    for axis in range(len(op.idx_list), ndim):
        shape.append(f"{view}.shape[{axis}]")
        strides.append(f"{view}.strides[{axis}]")
    return region.let("char *", " + ".join(data)), shape, strides


def spread(region: RegionWriter, value: Variable, lengths: str, ndim: int) -> str:
    """Return the view of a value as an array of given lengths, along whose axes it broadcasts as declared."""
    own, view = value.type.ndim, region.view(value)
    if own > ndim:
        raise NoText("a value with more axes than its place")
    strides = ["0"] * (ndim - own)
    for k, axis in enumerate(range(ndim - own, ndim)):
        if value.type.broadcastable[k]:
            strides.append("0")
        else:
            region.demand(f"{view}.shape[{k}] == {lengths}[{axis}]")
            strides.append(f"{view}.strides[{k}]")
    return region.let_view(f"{view}.data", lengths, region.let_array(ndim, strides))
