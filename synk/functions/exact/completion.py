"""Walk a graph as it was written, and make of it the graph of one rank of many.

    scattered inputs -> relations -> node by node: rule, conversions -> this rank's variables, with relations

Where an Op needs one process's value of what ranks have in parts, the parts are completed by a collective Op
inside of the graph. Nothing else is changed, and what does not depend on rows is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor import config
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i

from synk.arrays.variables import first_row, leads, n_rows, total_rows
from synk.compile.graphs.origin import built_as, keep_origin, remade
from synk.compile.graphs.serialize import topological
from synk.compile.rows.relations import (
    EACH,
    SAME,
    SCALED,
    STREAM,
    SUM,
    Count,
    Own,
    Partial,
    Relation,
    RowNumbers,
    Rows,
    SomeRows,
    Stream,
    counted,
    owned,
)
from synk.compile.rows.table import Instead, Rebuilt, relate
from synk.ops.collective_op import has_collectives
from synk.ops.collectives import all_gather, all_reduce
from synk.ops.own_rows import OwnRows, own_rows, some_rows


class Local(NamedTuple):
    """The value that this rank computes for a variable, and its relation to one process's."""

    value: Variable
    relation: Relation


class Completion:
    """The graph of one rank, made of that of one process; what is in no table is the same on all ranks.

    Parts of the variables ``at_once`` are completed before anything is made of them: where they are completed
    at all, all that follows may as well be of one process's values.
    """

    def __init__(self, relations: Mapping[Variable, Relation], at_once: Collection[Variable] = ()):
        self._local = {variable: Local(variable, relation) for variable, relation in relations.items()}
        self._at_once = at_once
        self._depth: dict[Variable, float] = {}  # how many collectives lie behind a value, one after another
        self._converted: dict[tuple[Variable, Relation], Variable] = {}
        self._shaped_leads: dict[int, Any] = {0: leads}
        # What each rank draws for itself once, for all rows, and what it makes of that: the node that draws.
        self.draws: dict[Variable, Apply] = {}

    def walk(self, results: Iterable[Variable]) -> None:
        """Visit all nodes that lead to ``results``; afterwards `local` and `wanted` know them."""
        with config.change_flags(traceback__limit=0):  # nodes get the lines of those that they are made of
            for node in topological(results):
                if not self._known(node) and (
                    any(variable in self._local for variable in node.inputs) or has_collectives(node.op)
                ):
                    self._visit(node)

    def local(self, variable: Variable) -> Local:
        """Return what this rank has for a variable that was walked to."""
        return self._local.get(variable) or Local(variable, SAME)

    def wanted(self, variable: Variable, relation: Relation) -> Variable:
        """Return what this rank computes for a variable so that it has the given relation."""
        return self._convert(*self.local(variable), relation)

    def completed_parts(self, results: Iterable[Variable]) -> set[Variable]:
        """Return the variables behind ``results`` that ranks have in parts and that had to be completed."""
        return {
            variable
            for variable in ancestors(results)
            if isinstance(self.local(variable).relation, Partial)
            and (self.local(variable).value, SAME) in self._converted
        }

    # --- nodes ---------------------------------------------------------------------------------------

    def _known(self, node: Apply) -> bool:
        return all(variable in self._local for variable in node.outputs)

    def _visit(self, node: Apply) -> None:
        inputs, given = zip(*map(self.local, node.inputs), strict=True)
        here = remade(node, inputs)
        asked = any(one != SAME for one in given) or has_collectives(node.op)
        outcome = relate(node.op, here, given) if asked else None
        if isinstance(outcome, Instead):
            self._replace(node, outcome.outputs)
            return
        if isinstance(outcome, Rebuilt):
            self._rebuild(node, outcome)
            return
        wanted, results = outcome or by_default(node, given)
        if not all(self._possible(one, other) for one, other in zip(given, wanted, strict=True)):
            wanted, results = by_default(node, given)
        if self._would_wait(inputs, given, wanted):
            wanted, results = by_default(node, given)
        converted = [
            self._convert(value, one, other) for value, one, other in zip(inputs, given, wanted, strict=True)
        ]
        draw = node if STREAM in given else None
        self._learn(node, remade(node, converted).outputs, results, draw)

    def _learn(
        self, node: Apply, made: Sequence[Variable], relations: Sequence[Relation], draw: Apply | None
    ) -> None:
        """Take what was made for the outputs of a node; ``draw`` draws inside of it, if it is there."""
        inputs = list(dict.fromkeys(variable for one in made for variable in one.owner.inputs))
        depth = max((self._depth.get(variable, 0) for variable in inputs), default=0)
        depth += has_collectives(made[0].owner.op)
        drawn = draw or next(filter(None, map(self.draws.get, inputs)), None)
        for variable, mine, relation in zip(node.outputs, made, relations, strict=True):
            if depth:
                self._depth[mine] = depth
            if drawn is not None and relation == SAME:
                self.draws[mine] = drawn
            if mine is not variable or relation != SAME or mine in self.draws:
                self._local[variable] = self._local[mine] = Local(mine, relation)
            if variable in self._at_once and isinstance(relation, Partial):
                self._local[variable] = Local(self._convert(mine, relation, SAME), SAME)

    def _would_wait(
        self, values: Sequence[Variable], given: Sequence[Relation], wanted: Sequence[Relation]
    ) -> bool:
        """Tell whether parts are to be combined with a value that is complete after they could be.

        Completed together with what that value is made of they cost no collective of their own; what is made
        of them may cost one.
        """
        before = after = -1.0
        for value, one, other in zip(values, given, wanted, strict=True):
            depth = self._depth.get(value, 0)
            if isinstance(one, Partial) and one == other:
                before = max(before, depth)
            elif SAME in (one, other):
                after = max(after, depth + isinstance(one, Partial | Rows))
        return 0 <= before < after

    def _rebuild(self, node: Apply, outcome: Rebuilt) -> None:
        """Make this rank's node, which differs in more than its inputs."""
        converted = [
            value if wanted is None else self._convert(value, self.local(value).relation, wanted)
            for value, wanted in outcome.inputs
        ]
        made = outcome.build(converted)
        keep_origin(node.outputs, made)
        self._learn(node, made, outcome.outputs, outcome.draw)

    def _replace(self, node: Apply, outputs: Sequence[Variable]) -> None:
        """Walk an equivalent graph on this rank's inputs, and take its outputs for those of a node."""
        self.walk(outputs)
        for variable, equivalent in zip(node.outputs, outputs, strict=True):
            self._local[variable] = self.local(equivalent)

    # --- conversions ---------------------------------------------------------------------------------

    def _possible(self, given: Relation, wanted: Relation) -> bool:
        """Tell whether ``given`` can be made ``wanted``: only selected rows are where nobody else knows."""
        if not isinstance(wanted, Rows):
            return True
        if isinstance(given, Rows | RowNumbers) and not isinstance(given.length, str):
            return given.length == wanted.length
        return isinstance(wanted.length, str)

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
            value, given = value + first_row.astype(value.type.dtype), Rows(0, given.length)
            if wanted == given:
                return value
        if wanted == SUM and isinstance(given, Count):
            return value
        if wanted == SUM and isinstance(given, Own):
            return self._share(value)
        if given != SAME and wanted != SAME:
            return self._convert(self._convert(value, given, SAME), SAME, wanted)
        if given == SAME:
            return self._parted(value, wanted)
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
        """Return what this rank adds to the mean, over all rows, of what each rank has of its own."""
        share = (n_rows / pt.maximum(total_rows, 1)).astype(value.type.dtype)
        return pt.switch(n_rows > 0, value * share, np.asarray(0, value.type.dtype))


def by_default(node: Apply, given: Sequence[Relation]) -> tuple[Sequence[Relation], Sequence[Relation]]:
    """Complete all inputs, as is right for every Op; what a rank has of its own makes others so."""
    own = owned(given)
    kept = [one if isinstance(one, Own | Stream) else SAME for one in given]
    results = [STREAM if isinstance(variable.type, RandomType) else own or SAME for variable in node.outputs]
    return kept, results


def is_own_part(value: Variable) -> bool:
    """Tell whether rows are a rank's part of what all ranks have."""
    return value.owner is not None and isinstance(value.owner.op, OwnRows)
