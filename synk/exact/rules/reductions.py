"""Rules of reductions: along the axis of rows they give parts, along other axes they leave rows."""

from __future__ import annotations

import numpy as np
import pytensor.scalar.basic as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import ExtractDiag
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Argmax

from synk.exact.rules.elementwise import keeps_counting
from synk.exact.rules.relations import (
    SCALED,
    Count,
    Counts,
    Own,
    Partial,
    Rows,
    SomeRows,
    as_rows,
    keeps_parts,
    selected,
    without_axes,
)
from synk.exact.rules.table import Instead, Outcome, Relations, relate

OPERATIONS = ("sum", "prod", "min", "max")
COMBINED_BY: dict[type, str] = {
    ps.Add: "sum",
    ps.Mul: "prod",
    ps.ScalarMaximum: "max",
    ps.ScalarMinimum: "min",
    ps.OR: "any",
    ps.AND: "all",
}


@relate.register(CAReduce)
def reduction(op: CAReduce, node: Apply, given: Relations) -> Outcome:
    """Relate a reduction to its input: of rows, along their axis, it is a part, along other axes it has rows.

    A part stays a part if it is reduced by its own operation, as a sum of parts of a sum.
    """
    one = as_rows(given[0])
    axes = range(node.inputs[0].type.ndim) if op.axis is None else op.axis
    name = _operation(op, node)
    dtypes = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    if isinstance(one, Rows):
        if one.axis in axes:
            if name in ("any", "all"):
                return [one], [Partial("max" if name == "any" else "min")]
            if name in ("min", "max"):
                return [SomeRows(one.axis, name)], [Partial(name)]
            return ([one], [Partial(name)]) if name else None
        return given, [without_axes(one, axes)]
    if isinstance(one, Partial) and (one.op, name) in (
        *((op, op) for op in OPERATIONS),
        ("max", "any"),
        ("min", "all"),
    ):
        return (given, given) if keeps_parts(one, *dtypes) else None
    if isinstance(one, Counts) and name == "prod" and sum(length is not None for length in one.lengths) == 1:
        return (given, [Count(SCALED)]) if keeps_counting(*dtypes) else None
    if isinstance(one, Own):
        return given, given
    return None


def _operation(op: CAReduce, node: Apply) -> str | None:
    """Return the operation that combines the ranks' results; None if there is none, as for bitwise Ops.

    There is none either if integers are added up in another dtype than that of the result, in which the sum
    over ranks would not wrap where that of one process does.
    """
    name = COMBINED_BY.get(type(op.scalar_op))
    result = node.outputs[0].type.dtype
    added = op.acc_dtype or result
    if name in ("sum", "prod") and added != result and np.dtype(added).kind in "iub":
        return None
    if name in ("any", "all"):
        return name if node.inputs[0].type.dtype == "bool" else None
    return None if name in ("sum", "prod") and node.outputs[0].type.dtype == "bool" else name


@relate.register(Argmax)
def argmax(op: Argmax, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if other axes are reduced; along rows, replace the Op by a graph.

    The graph finds the largest element of all rows, and then the first position at which it stands.
    """
    (one,) = given
    (x,) = node.inputs
    axes = tuple(range(x.type.ndim)) if op.axis is None else op.axis
    if not isinstance(one, Rows):
        return None
    if one.axis not in axes:
        return given, [without_axes(one, axes)]
    if selected(one):
        return None  # one gather instead of three collectives
    position, step = pt.zeros([1] * x.type.ndim, "int64"), pt.constant(1, dtype="int64")
    for axis in reversed(axes):
        along = pt.arange(x.shape[axis]) * step
        position = position + along.dimshuffle(*[0 if k == axis else "x" for k in range(x.type.ndim)])
        step = step * x.shape[axis]
    largest = pt.eq(x, pt.max(x, axis=axes, keepdims=True))
    largest = largest | pt.isnan(x) if x.type.dtype.startswith("float") else largest
    return Instead([pt.min(pt.switch(largest, position, step), axis=axes)])


@relate.register(ExtractDiag)
def extract_diag(op: ExtractDiag, node: Apply, given: Relations) -> Outcome:
    """Let the diagonal of a part be a part; rows stay rows unless the diagonal runs along their axis."""
    (one,) = given
    if isinstance(one, Partial):
        return given, given
    if isinstance(one, Rows) and one.axis not in (op.axis1, op.axis2):
        return given, [without_axes(one, (op.axis1, op.axis2))]
    return None
