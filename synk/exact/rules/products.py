"""Rules of matrix products and of Ops on many matrices."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.solvers.core import SolveBase
from pytensor.tensor.math import Dot

from synk.exact.rules.relations import SAME, SUM, Own, Partial, Rows, as_rows, keeps_parts, rows_along
from synk.exact.rules.table import Outcome, Relations, relate


@relate.register(Dot)
def dot(op: Dot, node: Apply, given: Relations) -> Outcome:
    """Relate a matrix product to its factors.

    Rows of the first factor are rows of the product, and columns of the second factor its columns. If the
    batch's rows lie along the axis that is summed over, each rank's product is a part of a sum.
    """
    return product(node, given, batch=0)


@relate.register(Blockwise)
def blockwise(op: Blockwise, node: Apply, given: Relations) -> Outcome:
    """Let rows along a batch axis stay rows, since every matrix is computed by itself.

    For rows along an axis of the matrices there are rules for products (`product`) and for solutions of
    linear equations (`_solved`).
    """
    batch = op.batch_ndim(node)
    rows = [one for one in given if isinstance(one, Rows) and one.axis < batch]
    if not rows:
        return product(node, given, batch) if isinstance(op.core_op, Dot) else _solved(op, node, given)
    axis, length = rows[0].axis, rows[0].length
    known = {length for core in op.inputs_sig for length in core}
    if any(isinstance(one, Own) for one in given) or not all(
        known.issuperset(core) for core in op.outputs_sig
    ):
        return None  # a rank without matrices could not know the size of the results
    wanted: list[Any] = []
    for variable, one in zip(node.inputs, given, strict=True):
        if isinstance(one, Rows) and one.axis == axis and one.length == length:
            wanted.append(one)
        else:
            wanted.append(rows_along(variable, axis, length))
    return wanted, [Rows(axis, length)] * len(node.outputs)


def _solved(op: Blockwise, node: Apply, given: Relations) -> Outcome:
    """Let each rank solve for its own columns of the right side, if the rows of the batch are its columns."""
    last = Rows(node.inputs[-1].type.ndim - 1)
    if isinstance(op.core_op, SolveBase) and op.core_op.b_ndim == 2 and given[-1] == last:
        return [*[SAME] * (len(given) - 1), last], [last]
    return None


def _stays_a_sum(node: Apply, one: Any, position: int) -> bool:
    """Tell whether a factor is a part of a sum such that the product with it is a part of a sum, too."""
    before, after = node.inputs[position].type.dtype, node.outputs[0].type.dtype
    return one == SUM and not one.picked and keeps_parts(SUM, before, after)


def product(node: Apply, given: Relations, batch: int) -> Outcome:
    """Return the relations of two factors and of their product, with ``batch`` batch axes; see `dot`."""
    left, right = map(as_rows, given)
    of_left, of_right = (variable.type.ndim for variable in node.inputs)
    inner_left, inner_right = of_left - 1, max(of_right - 2, batch)
    if any(isinstance(one, Own) for one in given):
        return None
    if isinstance(left, Partial) or isinstance(right, Partial):
        linear = [_stays_a_sum(node, one, k) for k, one in enumerate((left, right))]
        if linear[0] and not isinstance(right, Rows):
            return [SUM, SAME], [SUM]
        if linear[1] and not isinstance(left, Rows):
            return [SAME, SUM], [SUM]
    outer_left = isinstance(left, Rows) and left.axis != inner_left
    outer_right = isinstance(right, Rows) and right.axis != inner_right
    ndim = node.outputs[0].type.ndim
    if outer_left:
        return [left, SAME], [Rows(left.axis, left.length)]
    contracted = (isinstance(left, Rows) or isinstance(right, Rows)) and not outer_right
    if contracted and node.outputs[0].type.dtype != "bool":  # booleans of ranks cannot be added up
        length = left.length if isinstance(left, Rows) else right.length
        return [Rows(inner_left, length), Rows(inner_right, length)], [SUM]
    if outer_right:
        return [SAME, right], [Rows(ndim - 1, right.length)]
    return None
