"""Keep what this rank computes for each variable of the user's graph, and convert it as Ops need it.

    variable -> Local: value, relation -> wanted: another relation, by a collective if other ranks' rows count

The rule of an Op (see `completion`) says which relation it needs.
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
    """The values that this rank computes, by the variables of the user's graph.

    A variable without an entry is the same on all ranks.
    """

    def __init__(self, relations: Mapping[Variable, Relation]):
        self._local = {variable: Local(variable, relation) for variable, relation in relations.items()}
        self._depth: dict[Variable, float] = {}  # how many collectives lie behind a value, one after another
        self._converted: dict[tuple[Variable, Relation], Variable] = {}
        self._shaped_leads: dict[int, Any] = {0: leads}

    def local(self, variable: Variable) -> Local:
        """Return this rank's value for a variable of the user's graph, and its relation."""
        return self._local.get(variable) or Local(variable, SAME)

    def relation(self, variable: Variable) -> Relation:
        """Return how this rank's value of a variable relates to that of one process."""
        return self.local(variable).relation

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
        """Return one process's value of a variable of which each rank has a part, rows or its own value."""
        if isinstance(given, Partial):
            return all_reduce(value, given.op)
        if isinstance(given, Rows):
            return self._gathered(value, given)
        if given == DRAWN:
            return broadcast(value)
        assert isinstance(given, Own)
        return all_reduce(self._share(value), "sum")

    def _gathered(self, value: Variable, given: Rows) -> Variable:
        """Return the rows of all ranks, without a collective if the node's inputs are gathered already."""
        node = value.owner
        if is_own_part(value):
            return node.inputs[0]
        if node is not None and self._easily_made(node):
            complete = [self._convert(*self.local(one), SAME) for one in node.inputs]
            return remade(node, complete).outputs[node.outputs.index(value)]
        return self._meeting(value, given)

    def _easily_made(self, node: Apply) -> bool:
        """Tell whether a node is better computed again from all ranks' rows than gathered.

        It is if it only transposes its input, or if it is elementwise and its inputs were gathered already.
        """
        locals_ = [self.local(variable) for variable in node.inputs]
        rows = [local.value for local in locals_ if local.relation != SAME]
        if not all(isinstance(local.relation, Rows) or local.relation == SAME for local in locals_):
            return False
        if isinstance(node.op, DimShuffle):
            return bool(rows)
        gathered = [(value, SAME) in self._converted or is_own_part(value) for value in rows]
        return isinstance(node.op, Elemwise) and bool(rows) and all(gathered)

    def _meeting(self, value: Variable, given: Rows) -> Variable:
        """Return the rows of all ranks, gathered by a collective; subclasses may forbid that."""
        return all_gather(value, given.axis)

    def _parted(self, value: Variable, wanted: Relation) -> Variable:
        """Return this rank's rows, or its part, of a value that all ranks have.

        The part of a sum is the value itself in the one slice that leads, and 0 in all others.
        """
        if isinstance(wanted, Rows):
            return own_rows(value, wanted.axis)
        assert isinstance(wanted, Partial)
        if wanted.op in ("min", "max"):
            return value
        neutral = 0 if wanted.op == "sum" else 1
        if is_filled_with(value, neutral):
            return value
        ndim = value.type.ndim
        return pt.switch(self._leads(ndim), value, np.full((1,) * ndim, neutral, value.type.dtype))

    def _leads(self, ndim: int) -> Any:
        """Return `leads` with ``ndim`` axes of length 1; it is made once, since making a node takes long."""
        if ndim not in self._shaped_leads:
            self._shaped_leads[ndim] = leads.dimshuffle(["x"] * ndim)
        return self._shaped_leads[ndim]

    def _of_all_ranks(self, value: Variable) -> Variable:
        """Return one process's value of a number of rows, or of a shape with one in it, without a collective.

        It is computed again with `total_rows` in the place of `n_rows`. Only the number of selected rows
        needs a collective.
        """
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
                self._of_all_ranks(one) if counted(self.relation(one)) else one for one in node.inputs
            ]
            made = remade(node, complete).outputs[node.outputs.index(value)]
        self._converted[key] = made
        return made

    def _total(self, local: Local, axis: int) -> Variable:
        """Return how many rows all ranks have of a value along ``axis``."""
        relation: Any = local.relation
        if relation.length == EACH:
            return total_rows
        length = Shape_i(axis)(local.value)
        if relation.length == SCALED:
            # A rank without rows computes on one row that stands in for them where it takes part in
            # collectives.
            return pt.switch(n_rows > 0, length * total_rows // pt.maximum(n_rows, 1), length)
        return built_as(all_reduce(length, "sum"), local.value)

    def _share(self, value: Variable) -> Variable:
        """Return this rank's value times its share of the rows: summed over ranks, the mean over rows."""
        share = (n_rows / pt.maximum(total_rows, 1)).astype(value.type.dtype)
        return pt.switch(n_rows > 0, value * share, np.asarray(0, value.type.dtype))


def is_own_part(value: Variable) -> bool:
    """Tell whether a value was cut out of a value that all ranks have, by `own_rows`."""
    return value.owner is not None and isinstance(value.owner.op, OwnRows)


def is_filled_with(variable: Variable, number: int) -> bool:
    """Tell whether a variable is a constant whose elements are all this number."""
    return isinstance(variable, Constant) and bool((variable.data == number).all())
