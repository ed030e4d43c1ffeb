"""Entries that say which inputs and outputs of an Op may be arrays of 16 bits where the graph says float32.

Products gain from it: their factors are rounded, their sums are not. Elementwise Ops, reductions and views
read what there is, and compute in float32. Everything else gets float32, and gives it. The table is open:

    @width.register(MyOp)
    def my_op(op, node):
        return Width(takes=(0,), gives=(0,))
"""

from typing import Any

from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic, math
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import Alloc, Join, Split
from pytensor.tensor.blas import BatchedDot, Dot22, Dot22Scalar, Gemm
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CpuContiguous
from pytensor.tensor.math import Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from synk.compile.compat import AdvancedSubtensor1, join_pieces
from synk.compile.tables import WIDE, Width, is_float_array, width

# Small relative errors of what they read, or of their result, are large ones of what follows.
DELICATE = (
    *(basic.Exp, basic.Exp2, basic.Expm1, basic.Log, basic.Log2, basic.Log10, basic.Log1p),
    *(basic.Pow, basic.Reciprocal, math.Softplus, math.Log1mexp),
)


@width.register(Dot)
@width.register(Dot22)
@width.register(Dot22Scalar)
@width.register(BatchedDot)
def product(op, node):
    """The two factors."""
    return Width(wants=(0, 1), gives=(0,))


@width.register(Gemm)
def product_and_sum(op, node):
    """The two factors; what the product is added to stays."""
    return Width(wants=(2, 3))


@width.register(Blockwise)
def batched(op, node):
    """Products of batches of matrices."""
    return Width(wants=(0, 1), gives=(0,)) if isinstance(op.core_op, Dot) else WIDE


@width.register(Elemwise)
def elemwise(op, node):
    """All inputs; the result has the width of those that have its shape."""
    arrays = [k for k, variable in enumerate(node.inputs) if is_float_array(variable)]
    if op.destroy_map or not arrays:
        return WIDE
    delicate = [k for k in range(len(node.outputs)) if is_delicate(op.scalar_op, k)]
    pattern = node.outputs[0].type.broadcastable
    whole = [k for k in arrays if node.inputs[k].type.broadcastable == pattern]
    several = [k for k in arrays if not all(node.inputs[k].type.broadcastable)]
    gives = range(len(node.outputs))
    return Width(takes=arrays, leads=whole or several, gives=gives, delicate=delicate, pulls=True)


def is_delicate(scalar_op: Any, output: int = 0) -> bool:
    """Tell whether a scalar Op, or one that an output of a Composite is computed by, should give float32."""
    if isinstance(scalar_op, Composite):
        made_by = [v.owner for v in ancestors([scalar_op.fgraph.outputs[output]]) if v.owner is not None]
        return any(is_delicate(node.op) for node in made_by)
    return isinstance(scalar_op, DELICATE)


@width.register(CAReduce)
def reduction(op, node):
    """What is reduced."""
    return Width(takes=(0,))


@width.register(Shape)
@width.register(Shape_i)
def shape(op, node):
    """Whatever it is: only its shape is read."""
    return Width(takes=(0,))


@width.register(Alloc)
def fill(op, node):
    """An array that is repeated."""
    return Width(takes=(0,), leads=(0,), gives=(0,), pulls=True)


@width.register(CpuContiguous)
@width.register(DimShuffle)
@width.register(Reshape)
@width.register(JoinDims)
@width.register(SplitDims)
@width.register(SpecifyShape)
def all_elements(op, node):
    """All elements, in another shape or order."""
    return Width(leads=(0,), gives=(0,), keeps=True, pulls=True)


@width.register(Subtensor)
@width.register(AdvancedSubtensor)
@width.register(AdvancedSubtensor1)
@width.register(Split)
def some_elements(op, node):
    """Some elements, as they are: to round all for these, or to widen all, could cost more than it saves."""
    return Width(takes=(0,), leads=(0,), gives=range(len(node.outputs)), keeps=True)


@width.register(Join)
def joined(op, node):
    """All pieces."""
    _, pieces = join_pieces(node)
    places = range(len(node.inputs) - len(pieces), len(node.inputs))
    arrays = [k for k in places if is_float_array(node.inputs[k])]
    return Width(takes=arrays, leads=places, gives=(0,), pulls=True)
