"""Take a rank's rows of a value that all ranks have.

value, n_rows, first_row, total_rows -> own_rows -> a view of this rank's rows
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from synk.compile import array_funcify
from synk.compile.programs.graphs.origin import place_of
from synk.compile.tables import host_inputs
from synk.exact.collectives.collective_op import any_length
from synk.exact.run_values import first_row, n_rows, total_rows
from synk.values.operations import identity


def own_rows(value: Variable, axis: int) -> Variable:
    """Return the rows of the running slice, of a value that has the rows of all ranks along ``axis``.

    The value may have several elements along the axis for each row, equally many for every row.
    """
    return OwnRows(axis)(value)


class OwnRows(Op):
    """Take the part of ``axis`` that belongs to the rows of the running slice."""

    __props__ = ("axis",)
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def __init__(self, axis: int):
        self.axis = axis

    def make_node(
        self, value: Any, n: Any = n_rows, first: Any = first_row, total: Any = total_rows
    ) -> Apply:
        return Apply(self, [value, n, first, total], [value.type.clone(shape=any_length(value, self.axis))()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = self.part(node, *inputs)

    def part(self, node: Apply, value: Any, n: Any, first: Any, total: Any) -> Any:
        """Return this rank's part; raise ValueError if the length is no multiple of the rows of the call."""
        n, first, total = int(n), int(first), int(total)
        length = value.shape[self.axis]
        each, over = divmod(length, total) if total else (0, length)
        if over:
            raise ValueError(self._misfit(node, length, total))
        return value[(slice(None),) * self.axis + (slice(first * each, (first + n) * each),)]

    def _misfit(self, node: Apply, length: int, total: int) -> str:
        name, place = node.inputs[0].name, place_of(node)
        text = f"{repr(name) if name else 'a value'} has {length} row{'s' * (length != 1)}"
        text += f" and meets the {total} rows of all scattered inputs" + (f" ({place})" if place else "")
        declared = f"pytensor.tensor.specify_broadcastable(value, {self.axis})"
        return text + (f"; if it is one for all of them, {declared} says so" if length == 1 else "")


def some_rows(value: Variable, axis: int, op: str, total: Variable) -> Variable:
    """Return the rows of this rank or, if it has none, one row that does not change the result of ``op``.

    ``op`` is "min" or "max", and ``total`` is the number of all ranks' rows. If that is 0, there is no row.
    """
    return HasRows(axis, op)(value, total)


class HasRows(Op):
    """Return an array with one row if it has none, so that it has a maximum or minimum; see `some_rows`."""

    __props__ = ("axis", "op")
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def __init__(self, axis: int, op: str):
        self.axis, self.op = axis, op

    def make_node(self, value: Any, total: Any) -> Apply:
        return Apply(self, [value, total], [value.type.clone(shape=any_length(value, self.axis))()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = self.filled(np, *inputs)

    def filled(self, xp: Any, value: Any, total: Any) -> Any:
        """Return ``value`` if it has rows or no rank has any; else one row, the identity of the operation."""
        if value.shape[self.axis] or not int(total):
            return value
        shape = (*value.shape[: self.axis], 1, *value.shape[self.axis + 1 :])
        return identity(self.op, xp.empty(shape, value.dtype), xp)


@array_funcify.register(HasRows)
def some_rows_entry(op, node, xp):
    """Return the function that computes the Op: `HasRows.filled`."""
    return partial(op.filled, xp)


@host_inputs.register(HasRows)
def host_inputs_of_some_rows(op, node):
    """Return the input that is read on the host: the number of all rows."""
    return (1,)


@array_funcify.register(OwnRows)
def own_rows_entry(op, node, xp):
    """Return the function that computes the Op: `OwnRows.part`, which takes a view."""
    return partial(op.part, node)


@host_inputs.register(OwnRows)
def host_inputs_of_own_rows(op, node):
    """Return the inputs that are read on the host: the numbers of rows."""
    return (1, 2, 3)
