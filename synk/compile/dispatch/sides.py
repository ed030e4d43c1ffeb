"""Entries that say on which side, host or device, each Op computes, and which inputs it reads on the host.

Ops without an entry compute on the device and read nothing on the host. For an Op of your own that takes a
length, register a rule by ``host_inputs.register``.
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
from pytensor.tensor.extra_ops import (
    Bartlett,
    CumOp,
    FillDiagonalOffset,
    RavelMultiIndex,
    Repeat,
    UnravelIndex,
)
from pytensor.tensor.linalg.decomposition.lu import PivotToPermutations
from pytensor.tensor.linalg.solvers.lstsq import Lstsq
from pytensor.tensor.math import Argmax
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor
from pytensor.tensor.type_other import MakeSlice

from synk.compile.compat import AdvancedSubtensor1, Ger, IfElse, LazyIfElse
from synk.compile.programs.passes.host_or_device import wanted_on_host
from synk.compile.tables import DEVICE, FOLLOW, HOST, free_inputs, host_inputs, side

# Ops whose results Python reads: a shape, a scalar, a slice.
ON_HOST = (Shape, Shape_i, ScalarFromTensor, MakeSlice)

# These have inputs that are no arrays, but compute on the device if it has an implementation.
ON_DEVICE = (OpFromGraph, LazyIfElse, Scan, RandomVariable)

# Ops of which arithmetic on lengths and shapes consists.
WHERE_INPUTS_ARE = (
    *(Elemwise, DimShuffle, CAReduce, CumOp, Argmax, SortOp, ArgSortOp),
    *(Alloc, AllocEmpty, ARange, Eye, MakeVector, TensorFromScalar, Join, Split),
    *(Subtensor, IncSubtensor, AdvancedSubtensor, AdvancedSubtensor1, AdvancedIncSubtensor),
    *(Reshape, JoinDims, SplitDims, SpecifyShape, DeepCopyOp, TypeCastingOp, CheckAndRaise, IfElse),
)

for place, ops in ((HOST, ON_HOST), (DEVICE, ON_DEVICE), (FOLLOW, WHERE_INPUTS_ARE)):
    for op_class in ops:
        side.register(op_class)(lambda op, node, place=place: place)


def all_positions(node):
    """Return the positions of all inputs."""
    return range(len(node.inputs))


def numbers(node, positions):
    """Return those of the given positions at which inputs have a single element."""
    return [k for k in positions if all(node.inputs[k].type.broadcastable)]


def read_inside(op, node):
    """Return the positions of the inputs that an inner graph reads on the host."""
    wanted = wanted_on_host(op.fgraph.toposort())
    return [k for k, variable in enumerate(op.fgraph.inputs) if variable in wanted]


def of_branches(op, node):
    """Return the positions of the condition, and of the inputs that both branches read on the host."""
    return [0, *[1 + k for k in {*read_inside(op.true_branch, node)} & {*read_inside(op.false_branch, node)}]]


def of_scan(op, node):
    """Return the positions of the number of steps, the lengths of traces, and constants read on the host."""
    wanted = wanted_on_host(op.fgraph.toposort())
    inside, outside = op.inner_non_seqs(op.fgraph.inputs), op.outer_non_seqs(node.inputs)
    read = [*op.outer_nitsot(node.inputs), *[v for v, w in zip(outside, inside, strict=True) if w in wanted]]
    return [0, *[k for k, variable in enumerate(node.inputs) if any(variable is v for v in read)]]


def ends_of_slices(start):
    """Return a rule: the positions of the ends of slices in an index that begins at input ``start``."""

    def ends(op, node):
        slices = [entry for entry in op.idx_list if isinstance(entry, slice)]
        return [start + end for one in slices for end in (one.start, one.stop, one.step) if end is not None]

    return ends


def of_elemwise(op, node):
    """Return the positions of single elements that are not overwritten; none if the result is single too."""
    whole = node.outputs[0].type
    if whole.ndim and all(whole.broadcastable):
        return ()
    destroyed = set(op.inplace_pattern.values())
    return [k for k in numbers(node, all_positions(node)) if k not in destroyed]


READ_ON_HOST = {
    # Lengths, ends and steps; exchanges of rows, which a loop in Python follows.
    **dict.fromkeys(
        [AllocEmpty, ARange, Eye, Bartlett, PivotToPermutations], lambda op, node: all_positions(node)
    ),
    # A shape, the ends of slices, conditions, an axis, the lengths of parts, how often to repeat.
    **dict.fromkeys(
        (
            *(Alloc, Reshape, SplitDims, SpecifyShape, Subtensor, CheckAndRaise),
            *(SortOp, ArgSortOp, Split, Repeat, UnravelIndex),
        ),
        lambda op, node: all_positions(node)[1:],
    ),
    # The ends of slices, the offset, what counts as zero, whether a convolution is full.
    **dict.fromkeys(
        [IncSubtensor, FillDiagonalOffset, Lstsq, Convolve1d, Convolve2d],
        lambda op, node: all_positions(node)[2:],
    ),
    RavelMultiIndex: lambda op, node: all_positions(node)[-1:],  # the shape that is counted along
    AdvancedSubtensor: ends_of_slices(1),
    AdvancedIncSubtensor: ends_of_slices(2),
    RandomVariable: lambda op, node: (1,),  # the shape of the draw
    IfElse: lambda op, node: (0,),  # the condition
    Join: lambda op, node: () if hasattr(op, "axis") else (0,),  # the axis, where it is an input
    # ``beta``, which decides whether the target is read at all.
    **dict.fromkeys([Gemm, Gemv], lambda op, node: (4,)),
    Blockwise: lambda op, node: host_inputs(op.core_op, op._create_dummy_core_node(node.inputs)),
    OpFromGraph: read_inside,
    LazyIfElse: of_branches,
    Scan: of_scan,
}

ON_EITHER_SIDE = {
    # Lengths are known on the host wherever the array is.
    **dict.fromkeys([Shape, Shape_i], lambda op, node: (0,)),
    # ``alpha``, often a learning rate: for each value read on the host, a recording would be made anew.
    **dict.fromkeys([Gemm, Gemv, Ger], lambda op, node: (1,)),
    Elemwise: of_elemwise,
    RandomVariable: lambda op, node: numbers(node, all_positions(node)[2:]),  # parameters of the distribution
    Alloc: lambda op, node: numbers(node, (0,)),  # the value to fill with
    # The value to write or add.
    **dict.fromkeys([IncSubtensor, AdvancedIncSubtensor], lambda op, node: numbers(node, (1,))),
}

for table, rules in ((host_inputs, READ_ON_HOST), (free_inputs, ON_EITHER_SIDE)):
    for op_class, rule in rules.items():
        table.register(op_class, rule)
