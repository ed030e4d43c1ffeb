"""Split the data of a log-density over the ranks: find the arrays that have rows, and make them inputs.

a model, a dimension  -> length_of -> its length, if data have it
log-density, a length -> with_rows: arrays of that length become inputs, whose rows are scattered
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor

from synk.extensions.pymc.graph import constants
from synk.extensions.pymc.rebuild import rebuilt


class RowData(NamedTuple):
    """An input of a graph, and its values: rows along axis 0."""

    variable: Variable
    values: np.ndarray


def length_of(model: Any, shard: Any) -> int:
    """Return the number of rows along which a frozen model is split.

    Parameters
    ----------
    shard : str or True
        A dimension of the model; True takes the longest axis of the observed data.

    Raises
    ------
    TypeError, ValueError
        If there is no such dimension, or no data has it.
    """
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if shard is True:
        lengths = [length for value in observed for length in value.type.shape[:1] if length is not None]
        if not lengths:
            raise ValueError("shard=True: the model has no observed data with rows; name a dimension instead")
        return max(lengths)
    if not isinstance(shard, str):
        raise TypeError(f"shard={shard!r} is neither True nor the name of a dimension")
    if shard not in model.dim_lengths:
        known = ", ".join(map(repr, model.dim_lengths)) or "none: give coords= to pm.Model"
        raise ValueError(f"shard={shard!r} is no dimension of the model; it has {known}")
    length = int(model.dim_lengths[shard].eval(mode="FAST_COMPILE"))  # a graph, of pm.Data without coords
    having = [name for name, dims in model.named_vars_to_dims.items() if shard in dims]
    # The observed part of a variable with missing values has a name of its own, the variable the dimension.
    data = {rv.name.removesuffix("_observed") for rv in model.observed_RVs}
    data |= {variable.name for variable in model.data_vars}
    if not data.intersection(having):
        raise ValueError(
            f"shard={shard!r}: no data has this dimension, only {', '.join(map(repr, having)) or 'nothing'}; "
            "give dims= to pm.Data and to observed variables"
        )
    return length


def with_rows(pieces: Sequence[Variable], length: int) -> tuple[list[Variable], list[RowData]]:
    """Turn the constants that have an axis of this length into inputs; return the new graphs and the inputs.

    A constant may have that length by chance. The names of dimensions cannot decide, since arrays that the
    model computes from its data have no such names.
    """
    rows: list[RowData] = []
    numbers, leaves = [], {}
    for constant in constants(pieces):
        if is_row_numbers(constant.data, length):
            numbers.append(constant)
        elif length in constant.data.shape:
            axis = constant.data.shape.index(length)
            variable = _input(rows, np.moveaxis(constant.data, axis, 0), constant.name)
            leaves[constant] = pt.moveaxis(variable, 0, axis)
    if rows:
        own = pt.arange(rows[0].variable.shape[0])
        leaves.update((constant, own.astype(constant.dtype)) for constant in numbers)
    return rebuilt(pieces, without_static_lengths, leaves), rows


def _input(rows: list[RowData], values: np.ndarray, name: str | None) -> Variable:
    """Return the input with these values, adding it to ``rows`` if none has them yet."""
    for row in rows:
        if row.values.dtype == values.dtype and np.array_equal(row.values, values):
            return row.variable
    variable = pt.tensor(name or f"data {len(rows) + 1}", dtype=values.dtype, shape=(None, *values.shape[1:]))
    rows.append(RowData(variable, np.ascontiguousarray(values)))
    return variable


def is_row_numbers(values: np.ndarray, length: int) -> bool:
    """Tell whether an array holds the row numbers 0, 1, 2, ..., as used to pick an element of each row."""
    integers = values.shape == (length,) and values.dtype.kind in "iu"
    return integers and bool((values == np.arange(length)).all())


def picked_by_row(node: Apply, inputs: list[Any]) -> list[Variable] | None:
    """Replace an index by columns, which picks elements of each row, by one by vectors.

    For vectors synk knows that the result has the rows of the indexed array.

    ``x[i, j]`` with columns, as `pt.take_along_axis` writes it, becomes ``x[i[:, 0], j[:, 0]][:, None]``.
    """
    if not isinstance(node.op, AdvancedSubtensor):
        return None
    value, *indices = inputs
    columns = all(getattr(one.type, "shape", ())[1:] == (1,) for one in indices)
    if not columns or not len(indices) == value.type.ndim == len(node.op.idx_list):
        return None
    return [pt.expand_dims(value[tuple(map(_vector, indices))], 1)]


def _vector(column: Any) -> Variable:
    """Return a column as a vector; a constant stays a constant."""
    data = getattr(column, "data", None)
    return column[:, 0] if data is None else pt.constant(data[:, 0])


def without_static_lengths(node: Apply, inputs: list[Any]) -> list[Variable] | None:
    """Drop the lengths that SpecifyShape asserts of a changed input, except 1, as such axes broadcast."""
    if not isinstance(node.op, SpecifyShape) or inputs[0] is node.inputs[0]:
        return None
    value, *lengths = inputs
    ones = [1 if getattr(length, "data", None) == 1 else None for length in lengths]
    return [pt.specify_shape(value, ones) if any(ones) else value]
