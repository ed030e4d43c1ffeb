"""Levels of exactness: by how much two programs that follow IEEE may differ in a variable.

    graph -> levels: of each variable, one of the constants here

Sums of whole numbers, which are represented exactly, are the same in any order.
"""

from collections.abc import Iterable
from typing import Any

import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Composite, ScalarOp
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import Erfc
from pytensor.scan.op import Scan
from pytensor.tensor.blas import Dot22, Gemm, Gemv
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.sort import ArgSortOp, SortOp

from synk.compile.compat import Ger, IfElse, plain_graph
from synk.compile.programs.graphs.serialize import topological

WHOLE = 0  # whole numbers: any order of additions gives the same
EXACT = 1  # each operation is rounded as IEEE says
CLOSE = 2  # an elementary function of what is exact
SUMMED = 3  # a sum of what is exact
LOOSE = 4  # a function of what is not exact
OTHER = 5  # a choice, or a whole number, made of what is not exact: may be something else

WHOLE_STAYS = (ps.Add, ps.Sub, ps.Mul, ps.Sqr, ps.Floor, ps.Ceil, ps.Trunc, ps.RoundHalfToEven)
EXACT_OPS = (
    *WHOLE_STAYS,
    *(ps.TrueDiv, ps.Reciprocal, ps.Sqrt, ps.IntDiv, ps.Mod, ps.RoundHalfAwayFromZero),
    *(ps.BinaryBitOp, ps.Invert, ps.Composite, ps.IsNan, ps.IsInf, ps.LogicalComparison),
)
MOVING = (
    ps.Switch,
    ps.Second,
    ps.Identity,
    ps.Cast,
    ps.Neg,
    ps.Abs,
    ps.Maximum,
    ps.Minimum,
    ps.Clip,
    ps.Sign,
)
PRODUCTS = (Dot, Dot22, Gemm, Gemv, Ger)


def is_float(variable: Variable) -> bool:
    return getattr(variable.type, "dtype", "").startswith("float")


def of_scalar(op: ScalarOp, out: Variable, inputs: list[Variable], levels: list[int]) -> int:
    """Return the level of a scalar Op's result."""
    worst = max(levels, default=WHOLE)
    if isinstance(op, Composite):
        inner = levels_of(op.fgraph.outputs, dict(zip(op.fgraph.inputs, levels, strict=True)))
        return max(inner[one] for one in op.fgraph.outputs)
    if isinstance(op, ScalarLoop):
        inner = levels_of(op.fgraph.outputs, dict.fromkeys(op.fgraph.inputs, max(worst, EXACT)))
        return EXACT if all(inner[one] <= EXACT for one in op.fgraph.outputs) else OTHER
    if not is_float(out) or isinstance(op, ps.Switch):
        first = levels[0] if isinstance(op, ps.Switch) else worst
        if first > EXACT:
            return OTHER
        if not is_float(out):
            return WHOLE
    if isinstance(op, MOVING):
        # A unit in the last place of what comes in is another one in what goes out.
        recast = any(is_float(one) and one.type.dtype != out.type.dtype for one in inputs)
        return max(worst, LOOSE if recast and worst > EXACT else worst)
    if isinstance(op, EXACT_OPS):
        if worst <= EXACT:
            return worst if isinstance(op, WHOLE_STAYS) else EXACT
        steps = (ps.Floor, ps.Ceil, ps.Trunc, ps.RoundHalfToEven, ps.RoundHalfAwayFromZero, ps.IntDiv, ps.Mod)
        return max(worst, OTHER if isinstance(op, steps) else LOOSE)
    # SciPy's erfc, too, is off by tens of units in its tail.
    return CLOSE if worst <= EXACT and not isinstance(op, Erfc) else max(worst, LOOSE)


def of_node(node: Any, levels: list[int]) -> int:
    """Return the level of a node's outputs."""
    op, out = node.op, node.outputs[0]
    worst = max(levels, default=WHOLE)
    if isinstance(op, Elemwise):
        return of_scalar(op.scalar_op, out, node.inputs, levels)
    if isinstance(op, ScalarOp):
        return of_scalar(op, out, node.inputs, levels)
    if isinstance(op, CAReduce):
        if isinstance(op.scalar_op, ps.ScalarMaximum | ps.ScalarMinimum) or not is_float(out):
            return OTHER if worst > EXACT and not is_float(out) else worst
        return WHOLE if worst == WHOLE else SUMMED if worst == EXACT else max(worst, LOOSE)
    if isinstance(op, (*PRODUCTS, CumOp)):
        return WHOLE if worst == WHOLE else max(worst, LOOSE)
    if isinstance(op, Scan | OpFromGraph):
        graph = plain_graph(op)
        inner = levels_of(graph.outputs, dict.fromkeys(graph.inputs, worst))
        found = max(inner[one] for one in graph.outputs)
        if found == WHOLE or not isinstance(op, Scan):
            return found
        # A step is rewritten for each: (x * x) * (x * x) may become a power.
        return OTHER if found == OTHER else LOOSE
    if isinstance(op, SortOp | ArgSortOp | Argmax):
        return OTHER if worst > EXACT and not isinstance(op, SortOp) else worst
    if isinstance(op, IfElse):
        return OTHER if levels[0] > EXACT else worst
    indices = [
        level for one, level in zip(node.inputs, levels, strict=True) if not is_float(one) and level > EXACT
    ]
    if indices:
        return OTHER
    name = type(op).__name__
    if name.startswith(("AdvancedInc", "IncSub")) and not op.set_instead_of_inc:
        return worst if worst <= EXACT else max(worst, LOOSE)
    if is_known(name):
        # Units of the narrower float are many of the wider one.
        narrow = is_float(out) and any(
            level > EXACT and one.type.dtype != out.type.dtype
            for one, level in zip(node.inputs, levels, strict=True)
            if is_float(one)
        )
        return max(worst, LOOSE) if narrow else worst
    return LOOSE if worst < OTHER else OTHER


KNOWN = (
    *("DimShuffle", "Reshape", "Shape", "Shape_i", "Subtensor", "AdvancedSubtensor", "IncSubtensor", "Join"),
    *("AdvancedIncSubtensor", "Alloc", "AllocEmpty", "MakeVector", "ARange", "SpecifyShape", "Split", "Eye"),
    *(
        "ScalarFromTensor",
        "TensorFromScalar",
        "ExtractDiag",
        "AllocDiag",
        "JoinDims",
        "SplitDims",
        "Unbroadcast",
    ),
    *(
        "AdvancedSubtensor1",
        "AdvancedIncSubtensor1",
        "DeepCopyOp",
        "ViewOp",
        "MakeSlice",
        "Nonzero",
        "Assert",
    ),
    *("OutputGuard", "CheckAndRaise", "Repeat", "Second"),
)


def is_known(name: str) -> bool:
    return name in KNOWN


def levels_of(results: Iterable[Variable], given: dict[Variable, int]) -> dict[Variable, int]:
    """Return the level of each variable that leads to ``results``; what is not given has its own."""
    levels = dict(given)

    def level(variable: Variable) -> int:
        if variable in levels:
            return levels[variable]
        assert isinstance(variable, Constant) or variable.owner is None
        return whole_constant(variable)

    for node in topological([one for one in results if one not in levels]):
        if all(one in levels for one in node.outputs):
            continue
        found = of_node(node, [level(one) for one in node.inputs])
        for one in node.outputs:
            levels.setdefault(one, found)
    for one in results:
        levels.setdefault(one, level(one))
    return levels


def whole_constant(variable: Any) -> int:
    """Return the level of a constant, or of a variable of which nothing is known."""
    if not is_float(variable):
        return WHOLE
    data = getattr(variable, "data", None)
    if data is None:
        return EXACT
    return WHOLE if (data == data.round()).all() and (abs(data) < 1000).all() else EXACT
