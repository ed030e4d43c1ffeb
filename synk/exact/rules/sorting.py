"""Rules of Ops that sort, or that search in sorted arrays."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor.extra_ops import SearchsortedOp
from pytensor.tensor.sort import ArgSortOp, SortOp

from synk.compile.compat import known_axis
from synk.exact.rules.relations import SAME, Rows
from synk.exact.rules.table import Outcome, Relations, relate


@relate.register(SortOp)
@relate.register(ArgSortOp)
def sorted_(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if another axis is sorted; else all ranks sort all rows."""
    one, axis = given[0], known_axis(node, 1)[0]
    if isinstance(one, Rows) and axis is not None and axis % node.inputs[0].type.ndim != one.axis:
        return given, [one]
    return None


@relate.register(SearchsortedOp)
def searched(op: SearchsortedOp, node: Apply, given: Relations) -> Outcome:
    """Let each rank look up its own rows of values in a sorted array that all ranks have."""
    _, values, *order = given
    return ([SAME, values, *[SAME] * len(order)], [values]) if isinstance(values, Rows) else None
