"""C texts of Ops that copy no element: they make other views of an array, or numbers of its lengths."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type_other import NoneTypeT

from synk.compile.compat import known_axis
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.views import View


@c_text.register(DimShuffle)
def dimshuffle(op: DimShuffle, node: Apply, region: RegionWriter) -> None:
    """View an array with its axes in another order, some of them added or dropped."""
    (x,), (out,) = node.inputs, node.outputs
    view = region.variables.view(x)
    for axis in set(range(x.type.ndim)) - {*op.new_order}:
        region.text.demand(f"{region.variables.length(x, axis)} == 1")
    shape = ["1" if axis == "x" else view.shape[axis] for axis in op.new_order]
    strides = ["0" if axis == "x" else view.strides[axis] for axis in op.new_order]
    region.variables.bind_view(out, x, f"{view}.data", shape, strides)


@c_text.register(Split)
def split(op: Split, node: Apply, region: RegionWriter) -> None:
    """View parts of an axis, one after another."""
    axis, others = known_axis(node, 1)
    x, lengths = node.inputs[0], region.variables.lengths(node.inputs[others[-1]])
    if axis is None or len(lengths) != len(node.outputs):
        raise NoText("a split along an axis that is not known")
    view, at, axis = region.variables.view(x), "0", axis % x.type.ndim
    for variable, length in zip(node.outputs, lengths, strict=True):
        region.text.demand(f"{length} >= 0")
        shape = view.shape
        shape[axis] = length
        region.variables.bind_view(variable, x, view.at(*["0"] * axis, at), shape, view.strides)
        at = f"{at} + {length}"
    region.text.demand(f"{at} == {view.shape[axis]}")


@c_text.register(CheckAndRaise)
def checked(op: CheckAndRaise, node: Apply, region: RegionWriter) -> None:
    """Pass a value on if all conditions hold; else the region gives up, and Python names the condition."""
    value, *conditions = node.inputs
    type_of(value)  # raises NoText, where a value is no array
    for one in conditions:
        if type_of(one) and one.type.ndim:
            raise NoText("a condition with axes")
        region.text.demand(region.variables.number(one))
    region.variables.same(node.outputs[0], value)


@c_text.register(Shape_i)
def one_length(op: Shape_i, node: Apply, region: RegionWriter) -> None:
    """Name the length of an axis as a number."""
    region.variables.bind_number(node.outputs[0], region.variables.length(node.inputs[0], op.i))


@c_text.register(Shape)
def all_lengths(op: Shape, node: Apply, region: RegionWriter) -> None:
    """Note the expressions of the lengths of all axes, without a vector in memory."""
    (x,) = node.inputs
    region.variables.bind_lengths(
        node.outputs[0], [region.variables.length(x, axis) for axis in range(x.type.ndim)]
    )


@c_text.register(MakeVector)
def make_vector(op: MakeVector, node: Apply, region: RegionWriter) -> None:
    """Note the elements of a vector as expressions if they may be lengths; else write them to memory."""
    (out,) = node.outputs
    numbers = [region.variables.number(variable) for variable in node.inputs]
    if out.type.dtype != "int64" or any(variable.type.dtype != "int64" for variable in node.inputs):
        region.variables.write_numbers(out, numbers)
    else:
        region.variables.bind_lengths(out, numbers)


@c_text.register(ScalarFromTensor)
@c_text.register(TensorFromScalar)
def as_number(op, node: Apply, region: RegionWriter) -> None:
    """Pass a number on: with or without a type of arrays, it is the same in C."""
    region.variables.same(node.outputs[0], node.inputs[0])


@c_text.register(SpecifyShape)
def specify_shape(op: SpecifyShape, node: Apply, region: RegionWriter) -> None:
    """Pass an array on, if it has such a shape."""
    x, *lengths = node.inputs
    for axis, length in enumerate(lengths):
        if not isinstance(length.type, NoneTypeT):
            region.text.demand(f"{region.variables.view(x).shape[axis]} == {region.variables.number(length)}")
    region.variables.same(node.outputs[0], x)


@c_text.register(Reshape)
def reshape(op: Reshape, node: Apply, region: RegionWriter) -> None:
    """Regroup elements in C order: as a view if they lie in memory so, else in a copy."""
    x, shape = node.inputs
    lengths = region.variables.lengths(shape)
    if len(lengths) != node.outputs[0].type.ndim:
        raise NoText("a shape of another length")
    region.variables.bind_reshaped(node.outputs[0], x, lengths)


@c_text.register(JoinDims)
@c_text.register(SplitDims)
def regroup_axes(op, node: Apply, region: RegionWriter) -> None:
    """View neighbouring axes as one, or one axis as several; copy where no view can."""
    x, (out,) = node.inputs[0], node.outputs
    lengths = [region.variables.length(x, axis) for axis in range(x.type.ndim)]
    if isinstance(op, JoinDims):
        end = op.start_axis + op.n_axes
        lengths[op.start_axis : end] = [" * ".join(lengths[op.start_axis : end]) or "1"]
    else:
        lengths[op.axis : op.axis + 1] = region.variables.lengths(node.inputs[1])
    if len(lengths) != out.type.ndim:
        raise NoText("a shape of another length")
    region.variables.bind_reshaped(out, x, [f"(long)({length})" for length in lengths])


@c_text.register(Subtensor)
def subtensor(op: Subtensor, node: Apply, region: RegionWriter) -> None:
    """View the elements that an index selects; of a vector of known lengths, note the chosen ones."""
    (x, *positions), (out,), variables = node.inputs, node.outputs, region.variables
    if x not in variables.known_lengths or not all(isinstance(position, Constant) for position in positions):
        variables.bind_view(out, x, *part(region, op.idx_list, variables.view(x), positions))
        return
    (index,), lengths = op.idx_list, variables.lengths(x)

    def constant(entry):
        return None if entry is None else int(positions[entry].data)

    if isinstance(index, slice):
        some = slice(*map(constant, (index.start, index.stop, index.step)))
        variables.bind_lengths(out, lengths[some])
    else:
        try:
            variables.bind_number(out, lengths[constant(index)])
        except IndexError:
            raise NoText("no such length") from None


def part(
    region: RegionWriter, entries: Sequence[int | slice], view: View, positions: Sequence[Variable]
) -> tuple[str, list[str], list[str]]:
    """Return the address, the lengths and the strides, as C, of the part of a view that an index selects.

    ``entries`` are PyTensor's ``idx_list``, in which numbers are indices into ``positions``.
    """
    begin, shape, strides = [], [], []

    def number(entry):
        text = region.variables.number(positions[entry])
        if positions[entry].type.dtype == "uint64":
            text = f"({text} > __LONG_MAX__ ? __LONG_MAX__ : {text})"
        return f"(long){text}"

    def end(entry):
        return "ABSENT" if entry is None else f"end({number(entry)})"

    for entry, length, step in zip(entries, view.shape, view.strides, strict=False):
        if entry == slice(None):
            begin.append("0")
            shape.append(length)
            strides.append(step)
        elif isinstance(entry, slice):
            first, count = region.text.declare_variable("long"), region.text.declare_variable("long")
            by = region.text.let("long", "1" if entry.step is None else number(entry.step))
            ends = f"{end(entry.start)}, {end(entry.stop)}"
            region.text.demand(f"slice({length}, {ends}, {by}, &{first}, &{count})")
            begin.append(first)
            shape.append(count)
            strides.append(f"{by} * {step}")
        else:
            at = region.text.let("long", number(entry))
            region.text.demand(f"{at} >= -{length} && {at} < {length}")
            begin.append(f"{at} < 0 ? {at} + {length} : {at}")
    n = len(entries)
    return region.text.let("char *", view.at(*begin)), shape + view.shape[n:], strides + view.strides[n:]


def spread(region: RegionWriter, value: Variable, shape: Sequence[str]) -> View:
    """Return a view of a value in another shape, repeated along the axes that its type says broadcast."""
    view, added = region.variables.view(value), len(shape) - value.type.ndim
    if added < 0:
        raise NoText("a value with more axes than its place")
    strides = ["0"] * added
    for own, length, step, fixed in zip(
        view.shape, shape[added:], view.strides, value.type.broadcastable, strict=True
    ):
        if not fixed:
            region.text.demand(f"{own} == {length}")
        strides.append("0" if fixed else step)
    return region.text.declare_view(view.dtype, view.at(), shape, strides)
