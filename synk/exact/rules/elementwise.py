"""Rules of elementwise Ops: rows are computed one by one, and linear Ops keep parts of sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Constant
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from synk.exact.rules.relations import (
    SAME,
    SCALED,
    SUM,
    Count,
    Counts,
    Own,
    Partial,
    RowNumbers,
    Rows,
    as_rows,
    counted,
    keeps_parts,
    owned,
    rows_along,
    selected,
)
from synk.exact.rules.table import Outcome, Relations, relate

OPPOSITE = {"max": "min", "min": "max"}


@relate.register(Elemwise)
def elementwise(op: Elemwise, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows, with the other inputs' same rows; without rows `parts` or `counting` decides."""
    outputs = len(node.outputs)
    if isinstance(op.scalar_op, ps.Second) and isinstance(given[0], Partial | Count | Counts):
        # Only the shape of the first input is read, and a part has the shape of the whole value.
        plain = not isinstance(given[1], Rows | RowNumbers)
        return (given, [given[1]]) if plain else None
    if (own := owned(given)) is not None:
        wanted = [one if isinstance(one, Own | Rows) else SAME for one in given]
        return wanted, [own] * outputs
    rows = _leading_rows(given)
    if rows is not None:
        return [_beside(rows, variable, one) for variable, one in zip(node.inputs, given, strict=True)], [
            rows
        ] * outputs
    if all(counted(one) or one == SAME for one in given):
        return counting(op.scalar_op, node, given)
    return parts(op.scalar_op, node, given)


@relate.register(TensorFromScalar)
@relate.register(ScalarFromTensor)
def same_number(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a number keep its relation when a scalar becomes a 0-d tensor, or the reverse."""
    return given, given


# --- rows --------------------------------------------------------------------------------------------


def _leading_rows(given: Relations) -> Rows | None:
    """Return the relation of the result's rows: along the axis where most inputs have rows; None without."""
    rows = [one for one in map(as_rows, given) if isinstance(one, Rows)]
    if not rows:
        return None
    of_selection = [one for one in rows if selected(one)]
    return max(of_selection or rows, key=lambda one: sum(other.axis == one.axis for other in rows))


def _beside(rows: Rows, variable: Any, relation: Any) -> Any:
    """Return the relation that an input must have for each rank to compute the result's rows."""
    relation = as_rows(relation)
    if isinstance(relation, Rows) and matching(relation, rows):
        return relation
    return rows_along(variable, rows.axis, rows.length)


def matching(one: Rows, other: Rows) -> bool:
    """Tell whether two relations have equally many rows on each rank, if their totals are equal."""
    plain = not selected(one) and not selected(other)
    return one.axis == other.axis and (plain or one.length == other.length)


# --- numbers of rows ---------------------------------------------------------------------------------


def keeps_counting(before: str, after: str) -> bool:
    """Tell whether numbers of rows of dtype ``before`` add up to the total in the dtype ``after``, too."""
    return after in ("float32", "float64") or (after == "int64" and before.startswith(("int", "uint")))


def counting(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a number of rows stay one when it is cast or multiplied; other Ops need the total of all ranks."""
    if isinstance(op, ps.Cast | ps.Identity):
        before, after = node.inputs[0].type.dtype, node.outputs[0].type.dtype
        return (given, given) if before == after or keeps_counting(before, after) else None
    single = [one for one in given if one != SAME]
    if isinstance(op, ps.Mul) and len(single) == 1 and isinstance(single[0], Count):
        return given, [Count(None if selected(single[0]) else SCALED)]
    return None


# --- parts of sums, products, extremes -----------------------------------------------------------------


@singledispatch
def parts(op: Any, node: Apply, given: Relations) -> Outcome:
    """Return the relations if a scalar Op can be computed on parts; None if they must be combined first."""
    return None


def _parts(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a rule in `parts` for scalar Ops."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            parts.register(op)(rule)
        return rule

    return register


def _keep_dtype(node: Apply, given: Relations) -> bool:
    """Tell whether parts remain parts in the dtype of the result."""
    after = node.outputs[0].type.dtype
    pairs = zip(node.inputs, given, strict=True)
    return all(
        keeps_parts(one, variable.type.dtype, after) for variable, one in pairs if isinstance(one, Partial)
    )


def _part_of(given: Relations) -> Partial:
    """Return the relation of a value computed from parts; it is ``picked`` if all of these are."""
    parts = [one for one in given if isinstance(one, Partial)]
    return Partial(parts[0].op, picked=all(one.picked for one in parts))


def _beside_numbers(node: Apply, given: Relations, position: int) -> bool:
    """Tell whether all inputs but one are known to be finite and not 0.

    Infinities and zeros would make NaN of a part that is 0 or infinite only because the rank lacks the rows.
    """
    others = [k for k in range(len(given)) if k != position]
    return all(isinstance(given[k], Count) or _is_number(node.inputs[k]) for k in others)


def _is_number(variable: Any) -> bool:
    """Tell whether a variable is a constant that is finite and not 0."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        (variable,) = variable.owner.inputs
    return isinstance(variable, Constant) and bool((np.isfinite(variable.data) & (variable.data != 0)).all())


def _only_parts(given: Relations) -> set[str]:
    """Return the operations of the inputs that are parts; none if an input is neither a part nor `SAME`."""
    ops = {one.op for one in given if isinstance(one, Partial)}
    return ops if all(isinstance(one, Partial) or one == SAME for one in given) else set()


@_parts(ps.Add, ps.Sub)
def added(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let parts of sums add up to a part of a sum; to a minimum or maximum a finite number may be added."""
    given = [SUM if isinstance(one, Count) else one for one in given]
    ops = _only_parts(given)
    if ops == {"sum"}:
        return ([SUM] * len(given), [_part_of(given)]) if _keep_dtype(node, given) else None
    extremes = [k for k, one in enumerate(given) if isinstance(one, Partial)]
    if (
        len(ops) == 1
        and ops <= set(OPPOSITE)
        and _open_ended(node)
        and (extremes == [0] or (isinstance(op, ps.Add) and len(extremes) == 1))
        and _beside_numbers(node, given, *extremes)
    ):
        return given, [_part_of(given)]
    return None


def _open_ended(node: Apply) -> bool:
    """Tell whether the result's dtype has infinities.

    Else a rank without rows has the least or largest integer, which may wrap around.
    """
    return bool(node.outputs[0].type.dtype.startswith("float"))


@_parts(ps.Neg)
def negated(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a negated part of a sum stay a part; a minimum becomes a maximum, and the reverse."""
    (part,) = given
    if part == SUM or (isinstance(part, Partial) and part.op in OPPOSITE and _open_ended(node)):
        return given, [Partial(OPPOSITE.get(part.op, part.op), part.picked)]
    return None


@_parts(ps.Mul)
def multiplied(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a part of a sum, times a value that all ranks have, stay a part; parts of products multiply."""
    ops = _only_parts([SAME if isinstance(one, Count) else one for one in given])
    if not _keep_dtype(node, given):
        return None
    if ops == {"prod"}:
        return [Partial("prod")] * len(given), [Partial("prod")]
    if ops == {"sum"}:
        # One factor stays a part, and the others are completed: preferably it is a sum, not a picked row.
        first = min((k for k, one in enumerate(given) if one == SUM), key=lambda k: given[k].picked)
        if given[first].picked and not _beside_numbers(node, given, first):
            return None
        return [SUM if k == first else SAME for k in range(len(given))], [given[first]]
    return None


@_parts(ps.TrueDiv)
def divided(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a part of a sum, divided by a value that all ranks have, stay a part if the dtype allows it."""
    if given[0] != SUM or not _keep_dtype(node, given):
        return None
    return ([SUM, SAME], given[:1]) if not given[0].picked or _beside_numbers(node, given, 0) else None


@_parts(ps.Cast, ps.Identity)
def converted(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let parts stay parts in another dtype if `keeps_parts` allows it."""
    return (given, given) if _only_parts(given) and _keep_dtype(node, given) else None


@_parts(ps.Switch)
def chosen(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let a choice between parts of one kind be a part if the condition is the same on all ranks."""
    ops = _only_parts(given[1:])
    if given[0] == SAME and len(ops) == 1 and _keep_dtype(node, given):
        part = _part_of(given)
        return [SAME, part, part], [part]
    return None


def _extreme(name: str) -> Callable[..., Outcome]:
    def rule(op: Any, node: Apply, given: Relations) -> Outcome:
        by_bits = isinstance(op, ps.OR | ps.AND) and node.outputs[0].type.dtype != "bool"
        return (given, [Partial(name)]) if _only_parts(given) == {name} and not by_bits else None

    return rule


_parts(ps.ScalarMaximum, ps.OR)(_extreme("max"))
_parts(ps.ScalarMinimum, ps.AND)(_extreme("min"))
