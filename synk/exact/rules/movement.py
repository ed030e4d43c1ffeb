"""Rules of Ops that move values without computing: they transpose, join, split or pass them on."""

from __future__ import annotations

from typing import Any

from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.elemwise import DimShuffle

from synk.compile.compat import IfElse, known_axis
from synk.exact.rules.elementwise import matching
from synk.exact.rules.relations import SAME, Own, Partial, Rows, as_rows, common_part, first_rows, owned
from synk.exact.rules.table import Outcome, Relations, relate


@relate.register(DimShuffle)
def dimshuffle(op: DimShuffle, node: Apply, given: Relations) -> Outcome:
    """Let rows lie along the axis to which theirs is moved; a part stays a part."""
    one = as_rows(given[0])
    if isinstance(one, Rows):
        if one.axis not in op.new_order:
            return None
        return [one], [Rows(op.new_order.index(one.axis), one.length)]
    return (given, given) if isinstance(one, Partial | Own) else None


@relate.register(Join)
def join(op: Join, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if they are joined along another axis, and parts parts; else gather all rows."""
    axis, positions = known_axis(node, 0)
    before = [SAME] * (len(given) - len(positions))  # the axis, where it is an input
    if any(given[k] != SAME for k in range(len(before))):
        return None
    values = [given[k] for k in positions]
    own = owned(values)
    if own is not None:
        return [*before, *[one if isinstance(one, Own) else SAME for one in values]], [own]
    rows = first_rows(values)
    if rows is not None:
        if axis is None or axis % node.outputs[0].type.ndim == rows.axis:
            return None
        wanted = [one if isinstance(one, Rows) and matching(one, rows) else rows for one in values]
        return [*before, *wanted], [rows]
    part = common_part(values)
    return None if part is None else ([*before, *[part] * len(values)], [part])


@relate.register(Split)
def split(op: Split, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if they are split along another axis; a part is split into parts."""
    value, *others = given
    if any(one != SAME for one in others):
        return None
    if isinstance(value, Partial):
        return given, [value] * len(node.outputs)
    axis, _ = known_axis(node, 1)
    if isinstance(value, Rows) and axis is not None and axis % node.inputs[0].type.ndim != value.axis:
        return given, [value] * len(node.outputs)
    return None


@relate.register(ViewOp)
def viewed(op: ViewOp, node: Apply, given: Relations) -> Outcome:
    """Let a value that is passed on keep its relation: such Ops change its gradient alone, or stop it."""
    return given, given


@relate.register(CheckAndRaise)
def checked(op: CheckAndRaise, node: Apply, given: Relations) -> Outcome:
    """Let the checked value keep its relation; the conditions must be the same on all ranks."""
    value, *conditions = given
    return [value, *[SAME] * len(conditions)], [value]


@relate.register(IfElse)
def if_else(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let all ranks take the same branch; a result has the relation that it has in both branches."""
    _, *values = given
    n = op.n_outs
    results = []
    for one, other in zip(values[:n], values[n:], strict=True):
        chosen = one if other == SAME else other
        alike = one == other or (SAME in (one, other) and isinstance(chosen, Partial))
        results.append(chosen if alike else SAME)
    return [SAME, *results, *results], results
