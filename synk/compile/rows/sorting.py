"""Rules of Ops that go along one axis: sorted, normalised."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.tensor.extra_ops import SearchsortedOp
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax

from synk.compile.compat import known_axis
from synk.compile.rows.relations import SAME, Rows
from synk.compile.rows.table import Instead, Outcome, Relations, relate


@relate.register(SortOp)
@relate.register(ArgSortOp)
def sorted_(op: Any, node: Apply, given: Relations) -> Outcome:
    """Row by row."""
    one, axis = given[0], known_axis(node, 1)[0]
    if isinstance(one, Rows) and axis is not None and axis % node.inputs[0].type.ndim != one.axis:
        return given, [one]
    return None


@relate.register(SearchsortedOp)
def searched(op: SearchsortedOp, node: Apply, given: Relations) -> Outcome:
    """Value by value, in what all ranks have in order."""
    _, values, *order = given
    return ([SAME, values, *[SAME] * len(order)], [values]) if isinstance(values, Rows) else None


@relate.register(Softmax)
@relate.register(LogSoftmax)
def softmax(op: Any, node: Apply, given: Relations) -> Outcome:
    """Row by row; along the rows by its definition, in which the largest and the sum are of all ranks."""
    (one,) = given
    (x,) = node.inputs
    axes = _axes(op, x)
    if not isinstance(one, Rows):
        return None
    if one.axis not in axes:
        return given, given
    shifted = x - pt.max(x, axis=axes, keepdims=True)
    total = pt.exp(shifted).sum(axis=axes, keepdims=True)
    return Instead([shifted - pt.log(total) if isinstance(op, LogSoftmax) else pt.exp(shifted) / total])


def _axes(op: Any, variable: Any) -> tuple[int, ...]:
    """Return the axes that an Op goes along."""
    ndim = variable.type.ndim
    axis = op.axis
    if axis is None:
        return tuple(range(ndim))
    return tuple(one % ndim for one in (axis if isinstance(axis, tuple | list) else (axis,)))
