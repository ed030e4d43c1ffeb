"""Know what this rank computes for each variable of a graph, and make of it what an Op needs.

    variable -> Local: value, relation -> wanted: another relation, by a collective where ranks must meet

Which relation an Op needs its rule says (`completion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i

from synk.compile.programs.graphs.origin import built_as, remade
from synk.exact.collectives.collectives import all_gather, all_reduce, broadcast
from synk.exact.collectives.own_rows import OwnRows, own_rows, some_rows
from synk.exact.rules.relations import (
    DRAWN,
    EACH,
    SAME,
    SCALED,
    SUM,
    Count,
    Own,
    Partial,
    Relation,
    RowNumbers,
    Rows,
    SomeRows,
    as_rows,
    counted,
)
from synk.exact.run_values import first_row, leads, n_rows, total_rows


class Local(NamedTuple):
    """The value that this rank computes for a variable, and its relation to one process's."""

    value: Variable
    relation: Relation


class LocalValues:
    """The values that this rank has, by the variables of the graph as it was written.

    Those of which nothing is known are the same on all ranks.
    """

    def __init__(self, relations: Mapping[Variable, Relation]):
        self._local = {variable: Local(variable, relation) for variable, relation in relations.items()}
        self._depth: dict[Variable, float] = {}  # how many collectives lie behind a value, one after another
        self._converted: dict[tuple[Variable, Relation], Variable] = {}
        self._shaped_leads: dict[int, Any] = {0: leads}

    def local(self, variable: Variable) -> Local:
        """Return this rank's value for a variable that was walked to."""
        return self._local.get(variable) or Local(variable, SAME)

    def wanted(self, variable: Variable, relation: Relation) -> Variable:
        """Return this rank's value for a variable, converted so that it has the given relation."""
        return self._convert(*self.local(variable), relation)

    def _convert(self, value: Variable, given: Relation, wanted: Relation) -> Variable:
        if given == wanted or (
            isinstance(given, Rows) and isinstance(wanted, Rows) and given.axis == wanted.axis
        ):
            return value
        key = value, wanted if not isinstance(wanted, Rows) else Rows(wanted.axis)
        if key not in self._converted:
            made = self._conversion(value, given, wanted)
            self._converted[key] = made
            self._local.setdefault(made, Local(made, wanted))
        return self._converted[key]

    def _conversion(self, value: Variable, given: Relation, wanted: Relation) -> Variable:
        if isinstance(wanted, SomeRows):
            rows: Any = self._convert(value, given, Rows(wanted.axis))
            given = given if isinstance(given, Rows) else Rows(wanted.axis)
            return some_rows(rows, wanted.axis, wanted.op, self._total(Local(rows, given), wanted.axis))
        if isinstance(given, RowNumbers):
            value, given = value + first_row.astype(value.type.dtype), as_rows(given)
            if wanted == given:
                return value
        if wanted == SUM and isinstance(given, Count):
            return value
        if wanted == SUM and isinstance(given, Own):
            return self._share(value)
        if given != SAME and wanted != SAME:
            return self._convert(self._convert(value, given, SAME), SAME, wanted)
        if given == SAME:
            return value if wanted == DRAWN else self._parted(value, wanted)
        if counted(given):
            return self._of_all_ranks(value)
        made = built_as(self._completed(value, given), value)
        self._depth[made] = self._depth.get(value, 0) + 1
        return made

    def _completed(self, value: Variable, given: Relation) -> Variable:
        """Return one process's value of what ranks have in parts, or rows."""
        if isinstance(given, Partial):
            return all_reduce(value, given.op)
        if isinstance(given, Rows):
            return self._gathered(value, given)
        if given == DRAWN:
            return broadcast(value)
        assert isinstance(given, Own)
        return all_reduce(self._share(value), "sum")

    def _gathered(self, value: Variable, given: Rows) -> Variable:
        """Return the rows of all ranks, without a collective where they are easily made of such rows."""
        node = value.owner
        if is_own_part(value):
            return node.inputs[0]
        if node is not None and self._easily_made(node):
            complete = [self._convert(*self.local(one), SAME) for one in node.inputs]
            return remade(node, complete).outputs[node.outputs.index(value)]
        return self._meeting(value, given)

    def _easily_made(self, node: Apply) -> bool:
        """Tell whether an Op moves rows, or goes through rows that are there of all ranks."""
        locals_ = [self.local(variable) for variable in node.inputs]
        rows = [local.value for local in locals_ if local.relation != SAME]
        if not all(isinstance(local.relation, Rows) or local.relation == SAME for local in locals_):
            return False
        if isinstance(node.op, DimShuffle):
            return bool(rows)
        gathered = [(value, SAME) in self._converted or is_own_part(value) for value in rows]
        return isinstance(node.op, Elemwise) and bool(rows) and all(gathered)

    def _meeting(self, value: Variable, given: Rows) -> Variable:
        """Return the rows of all ranks, joined by a collective."""
        return all_gather(value, given.axis)

    def _parted(self, value: Variable, wanted: Relation) -> Variable:
        """Return this rank's rows, or part, of what all ranks have."""
        if isinstance(wanted, Rows):
            return own_rows(value, wanted.axis)
        assert isinstance(wanted, Partial)
        if wanted.op in ("min", "max"):
            return value
        neutral = 0 if wanted.op == "sum" else 1
        if isinstance(value, Constant) and (value.data == neutral).all():
            return value
        ndim = value.type.ndim
        return pt.switch(self._leads(ndim), value, np.full((1,) * ndim, neutral, value.type.dtype))

    def _leads(self, ndim: int) -> Any:
        """Return whether this slice leads, with so many axes; made once, as shuffling takes long to make."""
        if ndim not in self._shaped_leads:
            self._shaped_leads[ndim] = leads.dimshuffle(["x"] * ndim)
        return self._shaped_leads[ndim]

    def _of_all_ranks(self, value: Variable) -> Variable:
        """Return a number of rows, or lengths, as computed from the rows of all ranks."""
        key = value, SAME
        if key in self._converted:
            return self._converted[key]
        node = value.owner
        if value is n_rows:
            made: Any = total_rows
        elif isinstance(node.op, Shape):
            local = self.local(node.inputs[0])
            lengths = [value[k] for k in range(node.inputs[0].type.ndim)]
            axis = getattr(local.relation, "axis", 0)
            lengths[axis] = self._total(local, axis)
            made = MakeVector("int64")(*lengths)
        elif isinstance(node.op, Shape_i):
            made = self._total(self.local(node.inputs[0]), node.op.i)
        else:
            complete = [
                self._of_all_ranks(one) if counted(self.local(one).relation) else one for one in node.inputs
            ]
            made = remade(node, complete).outputs[node.outputs.index(value)]
        self._converted[key] = made
        return made

    def _total(self, local: Local, axis: int) -> Variable:
        """Return the length of rows of all ranks."""
        relation: Any = local.relation
        if relation.length == EACH:
            return total_rows
        length = Shape_i(axis)(local.value)
        if relation.length == SCALED:
            # Where ranks meet each has a row, be it one that stands in.
            return pt.switch(n_rows > 0, length * total_rows // pt.maximum(n_rows, 1), length)
        return built_as(all_reduce(length, "sum"), local.value)

    def _share(self, value: Variable) -> Variable:
        """Return this rank's part of the mean, over all rows, of a value of its own."""
        share = (n_rows / pt.maximum(total_rows, 1)).astype(value.type.dtype)
        return pt.switch(n_rows > 0, value * share, np.asarray(0, value.type.dtype))


def is_own_part(value: Variable) -> bool:
    """Tell whether rows are a rank's part of what all ranks have."""
    return value.owner is not None and isinstance(value.owner.op, OwnRows)
