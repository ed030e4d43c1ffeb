"""Rules of Ops for which the position of this rank's rows among all rows counts: indexing, running sums.

x[1:-1], cumsum(x, axis=0) -> the rows of the result that this rank has, from its own rows and `first_row`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import Assert
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.subtensor import (
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    get_canonical_form_slice,
    get_idx_list,
)

from synk.compile.compat import AdvancedSubtensor1
from synk.exact.collectives.collectives import all_gather
from synk.exact.rules.indexing import (
    WHOLE,
    advanced_subtensor,
    inc_subtensor,
    subtensor,
)
from synk.exact.rules.relations import EACH, SAME, Count, Partial, Relation, Rows, counted, rows_along
from synk.exact.rules.table import Instead, Outcome, Rebuilt, Relations, relate
from synk.exact.run_values import first_row, total_rows

OF_THE_RANGE = Assert("index out of range of the rows of all ranks")


@relate.register(Subtensor)
def subtensor_of_rows(op: Subtensor, node: Apply, given: Relations) -> Outcome:
    """Relate rows taken by a slice or a single index, which count the rows of all ranks.

    Of a slice, each rank has the rows that are its own. A single row is a part of a sum: the rank that has
    the row gives it, and all others give 0.
    """
    if (outcome := subtensor(op, node, given)) is not None:
        return outcome
    value, *indices = given
    if not _each(value) or not _known(op.idx_list, node.inputs[1:], indices, value.axis):
        return None
    if _all_rows(op.idx_list[value.axis], node.inputs[1:], indices):
        entries = get_idx_list(node.inputs, op.idx_list)
        return Instead([node.inputs[0][(*entries[: value.axis], WHOLE, *entries[value.axis + 1 :])]])
    kept = value.axis - _n_single(op.idx_list[: value.axis])
    single = not isinstance(op.idx_list[value.axis], slice)
    name = "max" if node.outputs[0].type.dtype == "bool" else "sum"

    def part(inputs: Sequence[Any]) -> list[Variable]:
        x, *own = inputs
        entries = get_idx_list((x, *own), op.idx_list)
        others = [*entries[: value.axis], WHOLE, *entries[value.axis + 1 :]]
        found = x[(*others[: value.axis], stretch(x, value.axis, entries[value.axis]))]
        found = found[(*[WHOLE] * kept, *others[value.axis :])] if len(others) > value.axis + 1 else found
        if not single:
            return [found]
        row = found.any(axis=kept) if name == "max" else found.sum(axis=kept, dtype=found.type.dtype)
        return [in_range(row, entries[value.axis])]

    relation: Relation = Partial(name, picked=True) if single else Rows(kept, _token(op, node, value.axis))
    return computed(node, [value, *[SAME] * len(indices)], [relation], part)


@relate.register(AdvancedSubtensor1)
@relate.register(AdvancedSubtensor)
def picked_rows(op: Any, node: Apply, given: Relations) -> Outcome:
    """Relate rows that are picked by constant numbers: a part of a sum, to which one rank gives each row."""
    if (outcome := advanced_subtensor(op, node, given)) is not None:
        return outcome
    value: Any = given[0]
    at = [axis for axis, entry in enumerate(getattr(op, "idx_list", (0,))) if entry != WHOLE]
    if not _each(value) or at != [value.axis] or not isinstance(node.inputs[1], Constant):
        return None
    numbers, axis, boolean = node.inputs[1].data, value.axis, node.inputs[0].type.dtype == "bool"
    if numbers.dtype == "bool":
        return None

    def part(inputs: Sequence[Any]) -> list[Variable]:
        rows = pt.moveaxis(inputs[0], axis, 0)
        wanted = _counted_from_the_front(numbers.ravel())
        local = wanted - first_row
        (own,) = pt.nonzero(pt.ge(local, 0) & pt.lt(local, rows.shape[0]))
        others = [rows.shape[k] for k in range(1, rows.type.ndim)]
        found = pt.set_subtensor(pt.zeros((numbers.size, *others), rows.type.dtype)[own], rows[local[own]])
        found = found.reshape((*numbers.shape, *others), ndim=numbers.ndim + len(others))
        found = pt.moveaxis(found, range(numbers.ndim), range(axis, axis + numbers.ndim))
        return [OF_THE_RANGE(found, pt.all(pt.ge(wanted, 0) & pt.lt(wanted, total_rows)))]

    return computed(node, given, [Partial("max" if boolean else "sum", picked=True)], part)


@relate.register(IncSubtensor)
def inc_subtensor_of_rows(op: IncSubtensor, node: Apply, given: Relations) -> Outcome:
    """Relate writing to a slice of all rows, or to one row: each rank writes to those that it has."""
    if (outcome := inc_subtensor(op, node, given)) is not None:
        return outcome
    value, added, *indices = given
    if not _each(value) or not _known(op.idx_list, node.inputs[2:], indices, value.axis):
        return None
    single = not isinstance(op.idx_list[value.axis], slice)
    behind = node.inputs[0].type.ndim - 1 - value.axis - _n_single(op.idx_list[value.axis + 1 :])
    ndim = node.inputs[1].type.ndim
    at = ndim - behind if single else ndim - behind - 1  # the axis of rows in the added array
    wanted = SAME if single else rows_along(node.inputs[1], at, _token(op, node, value.axis))
    taken = wanted != SAME and added != wanted
    if taken:
        wanted = SAME

    def written(inputs: Sequence[Any]) -> list[Variable]:
        x, y, *own = inputs
        entries = get_idx_list((x, *own), op.idx_list)
        entry = entries[value.axis]
        where = x[(*entries[: value.axis], stretch(x, value.axis, entry), *entries[value.axis + 1 :])]
        if single and at >= 0:
            y = pt.expand_dims(y, at)
        elif taken:
            y = y[(*[WHOLE] * at, own_part(x, value.axis, entry))]
        write = pt.set_subtensor if op.set_instead_of_inc else pt.inc_subtensor
        result = write(where, y)
        return [in_range(result, entry) if single else result]

    return computed(node, [value, wanted, *[SAME] * len(indices)], [value], written)


@relate.register(CumOp)
def accumulated(op: CumOp, node: Apply, given: Relations) -> Outcome:
    """Relate running sums and products: along rows, a rank continues from the total of the ranks before it.

    Along another axis, each row is computed by itself.
    """
    (one,) = given
    ndim = node.inputs[0].type.ndim
    axis = 0 if op.axis is None and ndim == 1 else op.axis
    if not isinstance(one, Rows) or axis is None:
        return None
    if axis % ndim != one.axis:
        return given, given
    name, neutral = ("sum", 0) if op.mode == "add" else ("prod", 1)

    def continued(inputs: Sequence[Any]) -> list[Variable]:
        (x,) = inputs
        dtype = node.outputs[0].type.dtype
        total = getattr(x, name)(axis=one.axis, dtype=dtype)
        totals, firsts = all_gather(total[None]), all_gather(first_row[None])
        earlier = pt.shape_padright(pt.lt(firsts, first_row), ndim - 1)
        before = getattr(pt.switch(earlier, totals, np.asarray(neutral, dtype)), name)(axis=0, dtype=dtype)
        own = op(x)
        before = pt.expand_dims(before, one.axis)
        return [(own + before if name == "sum" else own * before).astype(dtype)]

    return computed(node, [one], [one], continued)


def computed(node: Apply, wanted: Relations, relations: Relations, build: Any) -> Rebuilt:
    """Return a rule's outcome: ``build`` computes the outputs from inputs with the ``wanted`` relations."""
    return Rebuilt(list(zip(node.inputs, wanted, strict=True)), relations, build)


# --- positions ---------------------------------------------------------------------------------------


def stretch(x: Any, axis: int, entry: Any) -> slice:
    """Return the slice of this rank's rows of ``x`` that an index of all ranks' rows takes.

    ``entry`` is that index, a slice or a single number. The result is empty if this rank has no such row.
    """
    n = x.shape[axis]
    if isinstance(entry, slice):
        taken, _ = get_canonical_form_slice(entry, total_rows)
        first, stop, step = taken.start - first_row, taken.stop - first_row, taken.step
        first = pt.switch(pt.ge(first, 0), first, first % step)
    else:
        first = _counted_from_the_front(entry) - first_row
        stop, step = first + 1, 1
    return slice(pt.clip(first, 0, n), pt.clip(stop, 0, n), step)


def own_part(x: Any, axis: int, entry: slice) -> slice:
    """Return where this rank's rows are among the rows that the slice ``entry`` takes of all rows."""
    own, (taken, _) = stretch(x, axis, entry), get_canonical_form_slice(entry, total_rows)
    before = pt.maximum(first_row - taken.start + taken.step - 1, 0) // taken.step
    n = pt.maximum(own.stop - own.start + own.step - 1, 0) // own.step
    return slice(before, before + n)


def in_range(value: Any, entry: Any) -> Variable:
    """Return ``value`` with a check that raises unless ``entry`` is the number of a row of all ranks."""
    row = _counted_from_the_front(entry)
    return OF_THE_RANGE(value, pt.ge(row, 0) & pt.lt(row, total_rows))


def _counted_from_the_front(entry: Any) -> Any:
    row = pt.as_tensor_variable(entry)
    return pt.switch(pt.lt(row, 0), row + total_rows, row)


def _each(value: Relation) -> bool:
    return isinstance(value, Rows) and value.length == EACH


def _n_single(entries: Any) -> int:
    """Return the number of entries of an index that are single numbers, each of which removes an axis."""
    return sum(not isinstance(entry, slice) for entry in entries)


def _known(entries: Any, variables: Any, indices: Relations, axis: int) -> bool:
    """Tell whether all ranks have the same indices, and a slice of rows has a constant, positive step."""
    if axis >= len(entries) or not all(one == SAME or counted(one) for one in indices):
        return False
    entry = entries[axis]
    if not isinstance(entry, slice) or entry.step is None:
        return True
    step = variables[entry.step] if isinstance(entry.step, int) else entry.step
    return isinstance(step, Constant) and int(step.data) > 0


def _all_rows(entry: Any, variables: Any, indices: Relations) -> bool:
    """Tell whether an entry of an index is a slice of all rows, such as ``0:n`` in the graph of a loop."""
    if not isinstance(entry, slice):
        return False
    from_the_first = entry.start is None or getattr(variables[entry.start], "data", None) == 0
    by_ones = entry.step is None or getattr(variables[entry.step], "data", None) == 1
    return from_the_first and by_ones and (entry.stop is None or indices[entry.stop] == Count(EACH))


def _token(op: Any, node: Apply, axis: int) -> Any:
    """Return the ``length`` of `Rows` for a slice of rows, which is the same for equal slices."""
    inputs = (node.inputs[0], *node.inputs[-_n_indices(op) :]) if _n_indices(op) else node.inputs[:1]
    entry = get_idx_list(inputs, op.idx_list)[axis]
    bounds = (entry.start, entry.stop, entry.step)
    return ("stretch", *(int(one.data) if isinstance(one, Constant) else one for one in bounds))


def _n_indices(op: Any) -> int:
    entries = [(one.start, one.stop, one.step) if isinstance(one, slice) else (one,) for one in op.idx_list]
    return sum(isinstance(one, int) for entry in entries for one in entry)
