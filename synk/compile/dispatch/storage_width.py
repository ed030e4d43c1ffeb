"""A table of which inputs and outputs of an Op may be arrays of 16 bits where the graph says float32.

Products become faster by it: their factors are rounded, but not their sums. Elementwise Ops, reductions and
views read arrays of either width, and compute in float32. All other Ops read and return float32. One can add
an entry:

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

# Ops that turn a small relative error of an input, or of their result, into a large error further on.
DELICATE = (
    *(basic.Exp, basic.Exp2, basic.Expm1, basic.Log, basic.Log2, basic.Log10, basic.Log1p),
    *(basic.Pow, basic.Reciprocal, math.Softplus, math.Log1mexp),
)


def batched(op, node):
    """Return the entry of a Blockwise: that of a product, if it multiplies batches of matrices."""
    return PRODUCT if isinstance(op.core_op, Dot) else WIDE


def elemwise(op, node):
    """Return the entry of an Elemwise: its result has 16 bits if the inputs of the result's shape do."""
    arrays = [k for k, variable in enumerate(node.inputs) if is_float_array(variable)]
    if op.destroy_map or not arrays:
        return WIDE
    delicate = [k for k in range(len(node.outputs)) if is_delicate(op.scalar_op, k)]
    pattern = node.outputs[0].type.broadcastable
    whole = [k for k in arrays if node.inputs[k].type.broadcastable == pattern]
    several = [k for k in arrays if not all(node.inputs[k].type.broadcastable)]
    gives = range(len(node.outputs))
    return Width(takes=arrays, requires=whole or several, gives=gives, delicate=delicate, commutes=True)


def is_delicate(scalar_op: Any, output: int = 0) -> bool:
    """Return whether an output should stay float32: the Op, or one inside a Composite, is in `DELICATE`."""
    if isinstance(scalar_op, Composite):
        made_by = [v.owner for v in ancestors([scalar_op.fgraph.outputs[output]]) if v.owner is not None]
        return any(is_delicate(node.op) for node in made_by)
    return isinstance(scalar_op, DELICATE)


def joined(op, node):
    """Return the entry of a Join: it reads pieces of either width; its result has 16 bits if all have."""
    _, pieces = join_pieces(node)
    places = range(len(node.inputs) - len(pieces), len(node.inputs))
    arrays = [k for k in places if is_float_array(node.inputs[k])]
    return Width(takes=arrays, requires=places, gives=(0,), commutes=True)


def some_elements(op, node):
    """Return the entry of an Op that takes some elements of its first input, and keeps their width.

    Its input is not converted for it: that could cost more than the few elements save.
    """
    return Width(takes=(0,), requires=(0,), gives=range(len(node.outputs)), keeps=True)


PRODUCT = Width(rounds=(0, 1), gives=(0,))
READ = Width(takes=(0,))  # the input is read in either width, or only its shape
ALL_ELEMENTS = Width(requires=(0,), gives=(0,), keeps=True, commutes=True)  # in another shape or order

WIDTHS = {
    **dict.fromkeys([Dot, Dot22, Dot22Scalar, BatchedDot], PRODUCT),
    Gemm: Width(rounds=(2, 3)),  # the array that the product is added to stays float32
    **dict.fromkeys([CAReduce, Shape, Shape_i], READ),
    Alloc: Width(takes=(0,), requires=(0,), gives=(0,), commutes=True),
    **dict.fromkeys([CpuContiguous, DimShuffle, Reshape, JoinDims, SplitDims, SpecifyShape], ALL_ELEMENTS),
}

for op_class, known in WIDTHS.items():
    width.register(op_class, lambda op, node, known=known: known)

for op_class, rule in {Blockwise: batched, Elemwise: elemwise, Join: joined}.items():
    width.register(op_class, rule)

for op_class in (Subtensor, AdvancedSubtensor, AdvancedSubtensor1, Split):
    width.register(op_class, some_elements)
