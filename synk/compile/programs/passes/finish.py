"""Decide when the parts of a join are final, so that other ranks can get them while the rest is computed.

A flat gradient is formed piece by piece in its array, the last layers first: see ``destination``. A piece is
final after the last node that reads or writes it. Pieces that no node writes in place are copied there as
soon as they are made, not at the end.

    ProgramPlan: order, destinations, aliases -> find_finished -> what to do after which node: Actions

Pure: graphs in, decisions out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pytensor.graph.basic import Apply, Variable

from synk.compile.compat import join_pieces
from synk.compile.programs.passes.aliases import Aliases
from synk.compile.programs.passes.decisions import Actions, Finish, JoinLayout, PieceCopy, ProgramPlan


class Announcer(Protocol):
    """An object that a program tells which parts of a result are final."""

    def expect(self, variable: Variable, shape: tuple[int, ...], dtype: str) -> None:
        """Note, when a program is made, that it will announce the new value of a shared variable."""

    def finished(self, variable: Variable, array: Any, start: int) -> None:
        """Learn that the elements of ``array`` from ``start`` on, in C order, are final.

        Nothing of the program reads or writes them any more. The array becomes the value of ``variable``,
        or is copied to where the old one is: then it is another array than the old value.
        """


def find_finished(plan: ProgramPlan) -> tuple[Actions, dict[Apply, JoinLayout]]:
    """Decide after which nodes pieces of joins are copied into place, and announced as final.

    Return these actions by node, and the layouts of all joins, in which the copied pieces count as in place.
    """
    found, aliases, outputs = plan.destinations, plan.aliases, plan.fgraph.outputs
    read = {step.node: step.inputs for step in plan.placed.steps}  # the copies on the node's own side
    updates = {outputs[k]: variable for k, variable in found.update_targets.items()}
    returned = Counter(aliases.root(output) for output in outputs)
    actions: Actions = defaultdict(list)
    joins = dict(found.joins)
    for node, layout in found.joins.items():
        output = layout.buffer.output
        if (
            output not in updates or returned[aliases.root(output)] > 1
        ):  # another output is read from it, late
            continue
        finder = _Finder(node, layout, aliases, read[node])
        if not any(touching in plan.guards for touching in finder.nodes):
            joins[node] = layout._replace(pieces=tuple(finder.pieces))
            for touching, action in finder.actions(updates[output]):
                actions[touching].append(action)
    return dict(actions), joins


class _Finder:
    """A search for the nodes after which the pieces of one join are final."""

    def __init__(self, join: Apply, layout: JoinLayout, aliases: Aliases, read: Sequence[Variable]):
        self.pieces: list[tuple[int, int, bool]] = []
        self.nodes: list[Apply] = []  # by piece, the last one that touches it
        self._copies: list[tuple[Apply, PieceCopy]] = []
        self._join, self._buffer, self._aliases = join, layout.buffer, aliases
        last = self._last_readers()
        self._at_the_latest = last.get(aliases.root(layout.buffer.output))  # reads what the join returns
        _, variables = join_pieces(join)
        copies = read[-len(variables) :]
        for variable, copy, (start, stop, there) in zip(variables, copies, layout.pieces, strict=True):
            root = aliases.root(variable)
            node = join
            if there and root.owner is not None:
                node = max(root.owner, last.get(root, root.owner), key=aliases.position.__getitem__)
            elif not there:
                made = self._made(variable, copy is not variable)
                if self._buffer.target is None or aliases.free(self._buffer.target, made):
                    node, there = made, True
                    self._copies.append((node, PieceCopy(layout.buffer, start, stop, copy)))
            self.nodes.append(node)
            self.pieces.append((start, stop, there))

    def actions(self, variable: Variable) -> list[tuple[Apply, PieceCopy | Finish]]:
        """Return pairs of a node and the action right after it; copies come first."""
        position = self._aliases.position
        starts: dict[Apply, int] = {}
        latest = self.nodes[-1] if self._at_the_latest is None else self._at_the_latest
        for node, (start, _, _) in zip(reversed(self.nodes), reversed(self.pieces), strict=True):
            latest = max(latest, node, key=position.__getitem__)
            starts[latest] = start
        return [
            *self._copies,
            *((node, Finish(self._buffer, start, variable)) for node, start in starts.items()),
        ]

    def _last_readers(self) -> Mapping[Variable, Apply]:
        """Return for each root the last node, other than the join, that reads its memory."""
        last: dict[Variable, Apply] = {}
        for node in self._aliases.position:  # in the order they run
            if node is not self._join:
                last.update((self._aliases.root(variable), node) for variable in node.inputs)
        return last

    def _made(self, variable: Variable, crosses: bool) -> Apply:
        """Return the first node after which a piece can be copied.

        A piece that ``crosses`` between host and device is copied across just before the node that follows
        its own, so it can be used after that one.
        """
        order = list(self._aliases.position)
        if variable.owner is None:
            return order[0]
        return order[self._aliases.position[variable.owner] + crosses]
