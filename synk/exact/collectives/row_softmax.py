"""The rule of softmax, also along the axis of the rows, of which each rank has some.

exp(x - largest) / total, where the largest and the total are those of all ranks' rows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.special import LogSoftmax, Softmax

from synk.exact.collectives.collectives import all_reduce
from synk.exact.collectives.own_rows import some_rows
from synk.exact.rules.relations import Rows
from synk.exact.rules.table import Outcome, Rebuilt, Relations, relate

ANY = pt.constant(1, dtype="int64")


@relate.register(Softmax)
@relate.register(LogSoftmax)
def softmax(op: Any, node: Apply, given: Relations) -> Outcome:
    """Compute along the rows with the largest and the total of all ranks; along other axes, row by row."""
    (one,) = given
    axes = _axes(op, node.inputs[0])
    if not isinstance(one, Rows):
        return None
    if one.axis not in axes:
        return given, given

    def part(inputs: Sequence[Any]) -> list[Variable]:
        (x,) = inputs
        # A rank without rows takes the maximum of one row of the least number instead, since there is no
        # maximum of no rows. `ANY` tells that it does so even if no rank has rows: then the result has none
        # either.
        largest = pt.max(some_rows(x, one.axis, "max", ANY), axis=axes, keepdims=True)
        shifted = x - all_reduce(largest, "max")
        total = all_reduce(pt.exp(shifted).sum(axis=axes, keepdims=True), "sum")
        return [shifted - pt.log(total) if isinstance(op, LogSoftmax) else pt.exp(shifted) / total]

    return Rebuilt([(node.inputs[0], one)], [one], part)


def _axes(op: Any, variable: Any) -> tuple[int, ...]:
    """Return the axes along which a softmax is computed, none of them negative."""
    ndim = variable.type.ndim
    axis = op.axis
    if axis is None:
        return tuple(range(ndim))
    return tuple(one % ndim for one in (axis if isinstance(axis, tuple | list) else (axis,)))
