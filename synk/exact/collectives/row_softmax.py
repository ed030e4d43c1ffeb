"""The rule of softmax that goes along rows, which lie on all ranks.

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
    """Row by row; along the rows by its definition."""
    (one,) = given
    axes = _axes(op, node.inputs[0])
    if not isinstance(one, Rows):
        return None
    if one.axis not in axes:
        return given, given

    def part(inputs: Sequence[Any]) -> list[Variable]:
        (x,) = inputs
        # One row stands in wherever a rank has none, also where no rank has any: softmax of none is none,
        # while there is no largest of none.
        largest = pt.max(some_rows(x, one.axis, "max", ANY), axis=axes, keepdims=True)
        shifted = x - all_reduce(largest, "max")
        total = all_reduce(pt.exp(shifted).sum(axis=axes, keepdims=True), "sum")
        return [shifted - pt.log(total) if isinstance(op, LogSoftmax) else pt.exp(shifted) / total]

    return Rebuilt([(node.inputs[0], one)], [one], part)


def _axes(op: Any, variable: Any) -> tuple[int, ...]:
    """Return the axes that an Op goes along."""
    ndim = variable.type.ndim
    axis = op.axis
    if axis is None:
        return tuple(range(ndim))
    return tuple(one % ndim for one in (axis if isinstance(axis, tuple | list) else (axis,)))
