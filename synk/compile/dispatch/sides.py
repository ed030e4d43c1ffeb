"""On which side of host and device each Op computes, and which of its inputs it reads on the host.

Ops that are not listed compute on the device and read nothing on the host. An Op of your own that takes a
length says so with ``host_inputs.register``.
"""

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blas import Gemm, Gemv
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor
from pytensor.tensor.type_other import MakeSlice

from synk.compile.compat import AdvancedSubtensor1, Ger, IfElse, LazyIfElse
from synk.compile.passes.place import wanted_on_host
from synk.compile.tables import DEVICE, FOLLOW, HOST, free_inputs, host_inputs, side

# Read by Python: a shape, a scalar, a slice.
ON_HOST = (Shape, Shape_i, ScalarFromTensor, MakeSlice)

# Take values that are not arrays along, and compute on the device all the same, if it has an implementation.
ON_DEVICE = (OpFromGraph, LazyIfElse, Scan, RandomVariable)

# What arithmetic on lengths and shapes consists of.
WHERE_INPUTS_ARE = (
    *(Elemwise, DimShuffle, CAReduce, CumOp, Argmax, SortOp, ArgSortOp),
    *(Alloc, AllocEmpty, ARange, Eye, MakeVector, TensorFromScalar, Join, Split),
    *(Subtensor, IncSubtensor, AdvancedSubtensor, AdvancedSubtensor1, AdvancedIncSubtensor),
    *(Reshape, JoinDims, SplitDims, SpecifyShape, DeepCopyOp, TypeCastingOp, CheckAndRaise, IfElse),
)

for place, ops in ((HOST, ON_HOST), (DEVICE, ON_DEVICE), (FOLLOW, WHERE_INPUTS_ARE)):
    for op_class in ops:
        side.register(op_class)(lambda op, node, place=place: place)


@host_inputs.register(AllocEmpty)
@host_inputs.register(ARange)
@host_inputs.register(Eye)
def all_inputs(op, node):
    """Lengths, ends and steps."""
    return range(len(node.inputs))


@host_inputs.register(Alloc)
@host_inputs.register(Reshape)
@host_inputs.register(SplitDims)
@host_inputs.register(SpecifyShape)
@host_inputs.register(Subtensor)
@host_inputs.register(CheckAndRaise)
@host_inputs.register(SortOp)
@host_inputs.register(ArgSortOp)
@host_inputs.register(Split)
def all_but_first(op, node):
    """A shape, the ends of slices, conditions, an axis, the lengths of parts."""
    return range(1, len(node.inputs))


@host_inputs.register(IncSubtensor)
def all_but_two(op, node):
    """The ends of slices."""
    return range(2, len(node.inputs))


@host_inputs.register(RandomVariable)
def size(op, node):
    """The shape of the draw."""
    return (1,)


@host_inputs.register(IfElse)
def condition(op, node):
    """The condition."""
    return (0,)


@host_inputs.register(OpFromGraph)
def inner(op, node):
    """What the inner graph reads on the host."""
    wanted = wanted_on_host(op.fgraph.toposort())
    return [k for k, variable in enumerate(op.fgraph.inputs) if variable in wanted]


@host_inputs.register(LazyIfElse)
def condition_and_inner(op, node):
    """The condition, and what both branches read on the host."""
    return [0, *[1 + k for k in {*inner(op.true_branch, node)} & {*inner(op.false_branch, node)}]]


@host_inputs.register(Scan)
def lengths_and_inner(op, node):
    """The number of steps, the lengths of new traces, and constants that the step reads on the host."""
    wanted = wanted_on_host(op.fgraph.toposort())
    inside, outside = op.inner_non_seqs(op.fgraph.inputs), op.outer_non_seqs(node.inputs)
    read = [*op.outer_nitsot(node.inputs), *[v for v, w in zip(outside, inside, strict=True) if w in wanted]]
    return [0, *[k for k, variable in enumerate(node.inputs) if any(variable is v for v in read)]]


@host_inputs.register(Join)
def axis_of_join(op, node):
    """The axis, where it is an input."""
    return () if hasattr(op, "axis") else (0,)


@host_inputs.register(Gemm)
@host_inputs.register(Gemv)
def weight_of_target(op, node):
    """``beta``, which decides whether the target is read at all."""
    return (4,)


@host_inputs.register(Blockwise)
def of_the_core(op, node):
    """What the core Op reads on the host."""
    return host_inputs(op.core_op, op._create_dummy_core_node(node.inputs))


@host_inputs.register(AdvancedSubtensor)
def ends_of_slices(op, node):
    """The ends of slices; the other entries of the index may be arrays."""
    return _ends(op, 1)


@host_inputs.register(AdvancedIncSubtensor)
def ends_of_slices_written(op, node):
    """The ends of slices; the other entries of the index may be arrays."""
    return _ends(op, 2)


def _ends(op, start):
    slices = [entry for entry in op.idx_list if isinstance(entry, slice)]
    return [
        start + end for entry in slices for end in (entry.start, entry.stop, entry.step) if end is not None
    ]


@free_inputs.register(Shape)
@free_inputs.register(Shape_i)
def shape_alone(op, node):
    """Lengths are known on the host wherever the array is."""
    return (0,)


@free_inputs.register(Gemm)
@free_inputs.register(Gemv)
@free_inputs.register(Ger)
def factor(op, node):
    """``alpha``, often a learning rate: for each value read on the host, a recording would be made anew."""
    return (1,)


@free_inputs.register(Elemwise)
def numbers(op, node):
    """Single elements, if the result has its shape from others."""
    whole = node.outputs[0].type
    if whole.ndim and all(whole.broadcastable):
        return ()
    destroyed = set(op.inplace_pattern.values())
    return [i for i, v in enumerate(node.inputs) if all(v.type.broadcastable) and i not in destroyed]


@free_inputs.register(RandomVariable)
def numbers_of_a_distribution(op, node):
    """Single parameters of a draw on the device."""
    return [i for i, v in enumerate(node.inputs) if i > 1 and all(v.type.broadcastable)]


@free_inputs.register(Alloc)
def value_of_fill(op, node):
    """A single element to fill with."""
    return _if_single(node, 0)


@free_inputs.register(IncSubtensor)
@free_inputs.register(AdvancedIncSubtensor)
def value_to_write(op, node):
    """A single element to write or add."""
    return _if_single(node, 1)


def _if_single(node, position):
    return (position,) if all(node.inputs[position].type.broadcastable) else ()
