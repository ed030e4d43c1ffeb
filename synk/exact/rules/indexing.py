"""Rules of indexing: rows by their numbers, columns of rows, rows of tables that all ranks have."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Constant
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.basic import Nonzero
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor, Subtensor

from synk.compile.compat import AdvancedIncSubtensor1
from synk.exact.rules.relations import (
    EACH,
    SAME,
    SUM,
    Count,
    Counts,
    Partial,
    RowNumbers,
    Rows,
    keeps_parts,
    rows_along,
)
from synk.exact.rules.table import Outcome, Relations, relate

WHOLE = slice(None, None, None)


def subtensor(op: Subtensor, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if their axis is not indexed, and parts parts.

    For slices along the axis of rows see `synk.exact.collectives.row_positions`.
    """
    value, *indices = given
    if any(one != SAME for one in indices):
        return None
    if isinstance(value, Partial):
        return given, [value]
    if isinstance(value, Counts):
        return _some_lengths(op, node, value, given)
    if isinstance(value, Rows):
        axis = kept_axis(op.idx_list, value.axis)
        return None if axis is None else (given, [Rows(axis, value.length)])
    return None


def kept_axis(entries: Any, axis: int) -> int | None:
    """Return the position of an axis after basic indexing; None if not all of the axis is taken."""
    if axis < len(entries) and entries[axis] != WHOLE:
        return None
    return axis - sum(not isinstance(entry, slice) for entry in entries[:axis])


def _some_lengths(op: Subtensor, node: Apply, value: Counts, given: Relations) -> Outcome:
    """Return the relations if a shape is indexed by constants: a length is a number of rows, or `SAME`."""
    known = iter([variable.data if isinstance(variable, Constant) else None for variable in node.inputs[1:]])
    (entry,) = op.idx_list
    if isinstance(entry, slice):
        bounds = [None if one is None else next(known) for one in (entry.start, entry.stop, entry.step)]
        missing = [
            one is not None and bound is None
            for one, bound in zip((entry.start, entry.stop, entry.step), bounds, strict=True)
        ]
        return None if any(missing) else (given, [Counts(value.lengths[slice(*bounds)])])
    position = next(known)
    if position is None:
        return None
    length = value.lengths[int(position)]
    return given, [SAME if length is None else Count(length)]


def inc_subtensor(op: IncSubtensor, node: Apply, given: Relations) -> Outcome:
    """Let each rank write to its own rows, if their axis is not indexed, or to its part of a sum."""
    value, added, *indices = given
    if any(one != SAME for one in indices):
        return None
    if SUM in (value, added) and all(one in (SAME, SUM) for one in (value, added)):
        return ([SUM, SUM, *indices], [SUM]) if _adds_parts(node, added) else None
    rows = value if isinstance(value, Rows) else None
    if rows is None and isinstance(added, Rows):
        rows = _around(op.idx_list, added, node)
    if rows is None or (axis := kept_axis(op.idx_list, rows.axis)) is None:
        return None
    behind = axis - (kept_ndim(op.idx_list, node.inputs[0].type.ndim) - node.inputs[1].type.ndim)
    return [rows, rows_along(node.inputs[1], behind, rows.length), *indices], [rows]


def _adds_parts(node: Apply, added: Any) -> bool:
    """Tell whether parts of a sum are still parts after they were converted to the dtype of an array."""
    after, before = (variable.type.dtype for variable in node.inputs[:2])
    return added != SUM or keeps_parts(SUM, before, after)


def kept_ndim(entries: Any, ndim: int) -> int:
    """Return the number of axes that are left of ``ndim`` after basic indexing by ``entries``."""
    return ndim - sum(not isinstance(entry, slice) for entry in entries)


def _around(entries: Any, added: Rows, node: Apply) -> Rows | None:
    """Return the rows that an array must have so that the rows ``added`` are added to them.

    Return None if their axis is indexed.
    """
    ndim = node.inputs[0].type.ndim
    inside = added.axis + kept_ndim(entries, ndim) - node.inputs[1].type.ndim
    for axis in range(ndim):
        if kept_axis(entries, axis) == inside:
            return Rows(axis, added.length)
    return None


def advanced_subtensor(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let each rank pick by its own rows of indices, from a table that all have or from its own rows.

    A part of a sum stays a part.
    """
    value, *indices = given
    if (selected := _selected(op, node.inputs[1:], given[1:])) is not None:
        return [Rows(0), Rows(0)], [selected]
    entries = indexed(op, node, indices)
    if entries is None:
        return None
    if isinstance(value, Partial) and all(one in (SAME, None) for one in entries):
        return given, [value]
    return _picked(node, value, entries, given)


@relate.register(Nonzero)
def nonzero(op: Nonzero, node: Apply, given: Relations) -> Outcome:
    """Let each rank find the nonzero elements of its own rows: their row numbers and positions in a row."""
    if given[0] != Rows(0):
        return None
    found = node.inputs[0]
    return given, [RowNumbers(found), *[Rows(0, found)] * (len(node.outputs) - 1)]


def _selected(op: Any, variables: Any, indices: Relations) -> Rows | None:
    """Return the relation of rows that are selected by a boolean mask with an element for each row.

    Return None if the index is no such mask.
    """
    if len(indices) != 1 or getattr(op, "idx_list", (0,)) != (0,) or indices[0] != Rows(0):
        return None
    (mask,) = variables
    return Rows(0, mask) if mask.type.dtype == "bool" and mask.type.ndim == 1 else None


def indexed(op: Any, node: Apply, indices: Relations, offset: int = 1) -> list[Any] | None:
    """Return for each axis the relation of the array that indexes it; None for an axis that is not indexed.

    Return None instead of a list if there are masks, or slices with bounds.
    """
    variables = node.inputs[offset:]
    entries = getattr(op, "idx_list", (0,))
    result: list[Any] = []
    for entry in entries:
        if isinstance(entry, slice):
            if entry != WHOLE:
                return None
            result.append(None)
        elif isinstance(variables[entry].type, ScalarType) or variables[entry].type.dtype == "bool":
            return None
        else:
            result.append(indices[entry])
    return result


def _picked(node: Apply, value: Any, entries: list[Any], given: Relations) -> Outcome:
    indexed_axes = [axis for axis, one in enumerate(entries) if one is not None]
    adjacent = indexed_axes == list(range(indexed_axes[0], indexed_axes[-1] + 1)) if indexed_axes else False
    if not adjacent:
        return None
    arrays = node.inputs[1:]
    ndim = max(array.type.ndim for array in arrays)
    start = indexed_axes[0]
    if isinstance(value, Rows):
        own = value.axis < len(entries) and isinstance(entries[value.axis], RowNumbers)
        if own:
            return _by_numbers(node, value, entries, start)
        if value.axis in indexed_axes:
            return _picked(node, SAME, entries, given)
        if any(one != SAME for one in entries if one is not None):
            return None
        moved = value.axis if value.axis < start else value.axis - len(indexed_axes) + ndim
        return given, [Rows(moved, value.length)]
    # The indices are broadcast to each other, aligned at their last axes.
    pairs = [*zip(arrays, given[1:], strict=True)]
    places = {
        (one.axis + ndim - array.type.ndim, one.length) for array, one in pairs if isinstance(one, Rows)
    }
    if value != SAME or len(places) != 1:
        return None
    ((axis, length),) = places
    wanted = [
        one if isinstance(one, Rows) else rows_along(array, axis - (ndim - array.type.ndim), length)
        for array, one in pairs
    ]
    return [SAME, *wanted], [Rows(start + axis, length)]


def _by_numbers(node: Apply, value: Rows, entries: list[Any], start: int) -> Outcome:
    """Return the relations if each rank picks from its own rows by their numbers: `x[arange(n), y]`."""
    if value.length != EACH:
        return None
    numbers = entries[value.axis]
    wanted: list[Any] = [value]
    own = sum(one is not None for one in entries[: value.axis])
    for k, variable in enumerate(node.inputs[1:]):
        if variable.type.ndim != 1:
            return None
        if k == own:
            wanted.append(numbers)
        else:
            wanted.append(rows_along(variable, 0, numbers.length))
    return wanted, [Rows(start, numbers.length)]


@relate.register(AdvancedIncSubtensor1)
@relate.register(AdvancedIncSubtensor)
def advanced_inc_subtensor(op: Any, node: Apply, given: Relations) -> Outcome:
    """Let each rank add to its own rows or, with its rows of indices, to a table that all ranks have.

    The table that a rank adds to is then a part of a sum.
    """
    value, added, *indices = given
    table, values = node.inputs[:2]
    if (selected := _selected(op, node.inputs[2:], indices)) is not None:
        wanted_values = rows_along(values, values.type.ndim - table.type.ndim, selected.length)
        return [Rows(0), wanted_values, Rows(0)], [Rows(0)]
    entries = indexed(op, node, indices, offset=2)
    if entries is not None and value == SAME and entries[0] == RowNumbers(EACH):
        value = Rows(0)  # each rank needs only its own rows of the array
    if entries is None or (op.set_instead_of_inc and not isinstance(value, Rows)):
        return None
    if isinstance(value, Rows):
        return _added_to_own(node, value, entries)
    if table.type.dtype == "bool" or not all(isinstance(one, Rows) or one == SAME for one in indices):
        return None  # booleans of ranks cannot be added up
    per_row = [one for one in (added, *indices) if isinstance(one, Rows)]
    if entries[0] is None or any(one is None for one in entries[1:]):
        return None
    if not per_row:
        return ([SUM, SUM, *indices], [SUM]) if SUM in (value, added) and _adds_parts(node, added) else None
    if value not in (SAME, SUM):
        return None
    ndim = max(variable.type.ndim for variable in node.inputs[2:])
    if any(one.axis for one in per_row) or any(variable.type.ndim != ndim for variable in node.inputs[2:]):
        return None
    length = per_row[0].length
    full = ndim + table.type.ndim - len(entries)
    by_row = [rows_along(variable, 0, length) for variable in node.inputs[2:]]
    if not any(isinstance(one, Rows) for one in by_row):
        return None
    return [SUM, rows_along(values, values.type.ndim - full, length), *by_row], [SUM]


def _added_to_own(node: Apply, value: Rows, entries: list[Any]) -> Outcome:
    """Return the relations if each rank adds to its own rows, as in the gradient of `x[arange(n), y]`."""
    arrays = node.inputs[2:]
    if all(one == SAME for one in entries if one is not None):
        return _added_to_columns(node, value, entries)
    if (
        value != Rows(0)
        or not isinstance(entries[0], RowNumbers)
        or any(one.type.ndim != 1 for one in arrays)
    ):
        return None
    place = node.inputs[0].type.ndim - sum(one is not None for one in entries) + 1
    (_, added, _, *others), numbers = node.inputs, entries[0]
    by_row = [rows_along(variable, 0, numbers.length) for variable in others]
    return [value, rows_along(added, added.type.ndim - place, numbers.length), numbers, *by_row], [value]


def _added_to_columns(node: Apply, value: Rows, entries: list[Any]) -> Outcome:
    """Return the relations if each rank writes to the same columns of its own rows."""
    indexed_axes = [axis for axis, one in enumerate(entries) if one is not None]
    if value.axis in indexed_axes or indexed_axes[-1] - indexed_axes[0] + 1 != len(indexed_axes):
        return None
    ndim = max(variable.type.ndim for variable in node.inputs[2:])
    before = sum(axis < value.axis for axis in indexed_axes)
    behind = node.inputs[0].type.ndim - 1 - value.axis + (0 if before else ndim - len(indexed_axes))
    at = node.inputs[1].type.ndim - 1 - behind
    return [value, rows_along(node.inputs[1], at, value.length), *[SAME] * len(node.inputs[2:])], [value]
