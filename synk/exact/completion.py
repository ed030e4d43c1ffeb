"""Make the graph that each rank computes from the graph that the user wrote for one process.

    scattered inputs -> relations -> node by node: rule, conversions -> this rank's variables, with relations

A relation says how a rank's value of a variable comes with one process's value, for example as a part of a
sum. Where an Op needs the whole value, a collective Op is inserted that completes it. Nothing else is
changed, and nodes that do not depend on rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pytensor import config
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

from synk.compile.programs.graphs.origin import keep_origin, nearest_lines, remade, user_lines
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import has_collectives
from synk.exact.local_values import Local, LocalValues, is_own_part
from synk.exact.rules.relations import (
    DRAWN,
    SAME,
    STREAM,
    Drawn,
    Own,
    Partial,
    Relation,
    RowNumbers,
    Rows,
    Stream,
    as_rows,
    owned,
    selected,
)
from synk.exact.rules.table import Instead, Rebuilt, relate


class Completion(LocalValues):
    """The graph of one rank, made from that of one process.

    ``relations`` are those of the variables that differ between ranks; all others are the same on all ranks.
    Where ranks have parts of a variable in ``at_once``, the parts are completed directly after its node: some
    Op needs the whole value anyway, so all later nodes may use it.
    """

    def __init__(self, relations: Mapping[Variable, Relation], at_once: Collection[Variable] = ()):
        super().__init__(relations)
        self._at_once = at_once

    def walk(self, results: Iterable[Variable]) -> None:
        """Visit all nodes that lead to ``results``; afterwards `local` and `wanted` know their outputs."""
        with config.change_flags(traceback__limit=0):  # new nodes get the script's lines of the old ones
            for node in topological(results):
                if not self._known(node) and (
                    any(variable in self._local for variable in node.inputs) or has_collectives(node.op)
                ):
                    self._visit(node)

    def completed_parts(self, results: Iterable[Variable]) -> set[Variable]:
        """Return the variables behind ``results`` of which ranks have parts that had to be completed."""
        return {
            variable
            for variable in ancestors(results)
            if isinstance(self.relation(variable), Partial)
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
        wanted, results = checked(node, outcome) if outcome else by_default(node, given)
        if not all(map(possible, given, wanted)) or self._waits_for_later_collective(inputs, given, wanted):
            wanted, results = by_default(node, given)
        converted = [self._converted_for(node, *each) for each in zip(inputs, given, wanted, strict=True)]
        self._learn(node, remade(node, converted).outputs, results)

    def _converted_for(self, node: Apply, value: Variable, given: Relation, wanted: Relation) -> Variable:
        """Return an input of a node, converted from the relation ``given`` to the relation ``wanted``.

        If the conversion cuts a rank's rows out of a value, it gets the node's line of the script, which the
        error names if the number of rows does not fit.
        """
        made = self._convert(value, given, wanted)
        if is_own_part(made) and not user_lines(made):
            made.tag.trace = [[line] for line in nearest_lines(node)]
        return made

    def _learn(self, node: Apply, made: Sequence[Variable], relations: Sequence[Relation]) -> None:
        """Record what this rank computes for the outputs of a node, and the relations of these values."""
        inputs = list(dict.fromkeys(variable for one in made for variable in one.owner.inputs))
        depth = max((self._depth.get(variable, 0) for variable in inputs), default=0)
        depth += has_collectives(made[0].owner.op)
        for variable, mine, relation in zip(node.outputs, made, relations, strict=True):
            if depth:
                self._depth[mine] = depth
            if mine is not variable or relation != SAME:
                self._local[variable] = self._local[mine] = Local(mine, relation)
            if variable in self._at_once and isinstance(relation, Partial):
                self._local[variable] = Local(self._convert(mine, relation, SAME), SAME)

    def _waits_for_later_collective(
        self, values: Sequence[Variable], given: Sequence[Relation], wanted: Sequence[Relation]
    ) -> bool:
        """Tell whether a node would combine parts with a value that is known only after a later collective.

        Then it is cheaper to complete the parts before the node: an earlier collective, on which the other
        value depends, can add them up as well. Parts that the node computes may need a collective more.
        """
        before = after = -1.0
        for value, one, other in zip(values, given, wanted, strict=True):
            depth = self._depth.get(value, 0)
            if isinstance(one, Partial) and one == other:
                before = max(before, depth)
            elif SAME in (one, other):
                after = max(after, depth + isinstance(one, Partial | Rows | Drawn))
        return 0 <= before < after

    def _rebuild(self, node: Apply, outcome: Rebuilt) -> None:
        """Build this rank's node by the rule's ``build``, where it is not the same Op on other inputs."""
        converted = [
            value if wanted is None else self._converted_for(node, *self.local(value), wanted)
            for value, wanted in outcome.inputs
        ]
        made = outcome.build(converted)
        keep_origin(node.outputs, made)
        self._learn(node, made, outcome.outputs)

    def _replace(self, node: Apply, outputs: Sequence[Variable]) -> None:
        """Replace a node by an equivalent graph: walk that graph, and take its outputs as the node's."""
        self.walk(outputs)
        for variable, equivalent in zip(node.outputs, outputs, strict=True):
            self._local[variable] = self.local(equivalent)


def checked(node: Apply, relations: Any) -> Any:
    """Return the relations that a rule gave for a node; raise ValueError if their number is wrong."""
    said, asked = tuple(map(len, relations)), (len(node.inputs), len(node.outputs))
    if said != asked:
        rule = relate.dispatch(type(node.op))
        raise ValueError(
            f"the rule {rule.__module__}.{rule.__qualname__} returns relations of {said} inputs and outputs "
            f"of {node.op}, which has {asked}"
        )
    return relations


def possible(given: Relation, wanted: Relation) -> bool:
    """Tell whether a value can be converted from the relation ``given`` to the relation ``wanted``.

    Rows that a mask has selected are known only to the rank that has them. So they can be gathered, but not
    split in another way, and no other value can be converted to such rows.
    """
    if not isinstance(wanted, Rows):
        return True
    if isinstance(given, Rows | RowNumbers) and selected(given):
        return bool(as_rows(given) == wanted)  # along another axis they would be split by all rows
    return not selected(wanted)


def by_default(node: Apply, given: Sequence[Relation]) -> tuple[Sequence[Relation], Sequence[Relation]]:
    """Return the relations of inputs and outputs of a node that gets all inputs complete: right for any Op.

    Inputs of the relation `Own` cannot be completed. They stay as they are, and the outputs are `Own`, too.
    """
    mine = owned(given) or (DRAWN if STREAM in given else SAME)
    kept = [one if isinstance(one, Own | Stream) else SAME for one in given]
    results = [STREAM if isinstance(variable.type, RandomType) else mine for variable in node.outputs]
    return kept, results
