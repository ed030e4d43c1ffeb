"""Decide which nodes run only if a condition holds.

An ``IfElse`` takes one of two groups of values. Nodes that only one group needs do not run when the other one
is taken:

    graph, order -> plan_lazy -> order with conditions early, guard of each node

Pure: graphs in, decisions out; ``program_writer`` writes guards as ``if`` blocks. A graph without an
``IfElse`` keeps its order.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph

from synk.compile.compat import IfElse

Guard = Sequence[tuple[Variable, bool]]  # conditions and the truth that each must have, all of them


def plan_lazy(fgraph: FunctionGraph, order: Sequence[Apply]) -> tuple[list[Apply], dict[Apply, Guard]]:
    """Return an order of the nodes, and the guards of those that are not always needed.

    Conditions come before the nodes they guard; apart from that, the order is as close to the given ``order``
    as can be, in which readers of an array come before the node that destroys it. A node with a guard runs
    only where its guard holds; else its outputs have no value, and nothing reads them. The conditions of a
    guard are in the order in which they are computed.
    """
    if not any(isinstance(node.op, IfElse) for node in order):
        return list(order), {}
    before = fgraph.orderings()
    always: set[Apply] = set()
    while True:
        needs = find_needs(order, fgraph.outputs, always)
        result, stuck = sort(order, before, needs)
        if not stuck:
            return result, _guards(result, needs)
        # What a condition's node destroys must be read first: such readers cannot wait for the condition.
        always.add(stuck)


def find_needs(
    order: Sequence[Apply], outputs: Iterable[Variable], always: Collection[Apply]
) -> dict[Apply, set[tuple[Variable, bool]]]:
    """Return for each node the conditions, with their truth, under which alone its results are needed.

    ``outputs`` are always needed, and so are the nodes in ``always``.
    """
    needs: dict[Variable, set] = {variable: set() for variable in outputs}
    found = {}
    for node in reversed(order):
        uses = [needs[variable] for variable in node.outputs if variable in needs]
        need = set.intersection(*uses) if uses and node not in always else set()
        found[node] = need
        for variable, condition in _inputs(node):
            use = need | condition
            needs[variable] = needs[variable] & use if variable in needs else use
    return found


def _inputs(node: Apply) -> Iterable[tuple[Variable, set[tuple[Variable, bool]]]]:
    """Return the inputs of a node, each with the conditions under which the node reads it."""
    if not isinstance(node.op, IfElse):
        return [(variable, set()) for variable in node.inputs]
    condition, *branches = node.inputs
    truth = [True] * len(node.outputs) + [False] * len(node.outputs)
    pairs = [(variable, {(condition, true)}) for variable, true in zip(branches, truth, strict=True)]
    return [(condition, set()), *pairs]


def sort(
    order: Sequence[Apply],
    before: Mapping[Apply, Iterable[Apply]],
    needs: Mapping[Apply, set[tuple[Variable, bool]]],
) -> tuple[list[Apply], Apply | None]:
    """Sort nodes so that inputs, conditions and the nodes in ``before`` come first.

    Of the nodes that may come next, the first in ``order`` does, except that nodes of one guard stay
    together. If there is a circle, the second value returned is a node in it that waits for a condition.
    """
    followers: dict[Apply, list[Apply]] = {node: [] for node in order}
    missing = {}
    for node in order:
        earlier = _earlier(node, needs[node], before)
        missing[node] = len(earlier)
        for one in earlier:
            followers[one].append(node)
    ready = _Ready(order, needs)
    for node in order:
        if not missing[node]:
            ready.add(node)
    result = []
    while node := ready.take():
        result.append(node)
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.add(follower)
    return result, next((node for node in order if missing[node] and needs[node]), None)


def _earlier(node: Apply, need: Iterable[tuple[Variable, bool]], before: Mapping) -> set[Apply]:
    """Return the nodes that must run before ``node``."""
    read = [*node.inputs, *[condition for condition, _ in need]]
    return {variable.owner for variable in read if variable.owner is not None}.union(before.get(node, ()))


class _Ready:
    """The nodes whose predecessors have all been sorted."""

    def __init__(self, order: Sequence[Apply], needs: Mapping[Apply, set[tuple[Variable, bool]]]):
        self._order = order
        self._place = {node: index for index, node in enumerate(order)}
        self._needs = needs
        self._heaps: dict[frozenset, list[int]] = defaultdict(list)  # places in order, by needs
        self._last: frozenset = frozenset()

    def add(self, node: Apply) -> None:
        heappush(self._heaps[frozenset(self._needs[node])], self._place[node])

    def take(self) -> Apply | None:
        """Remove and return the next node, if possible one with the last one's conditions; None if empty."""
        heaps = {need: heap for need, heap in self._heaps.items() if heap}
        if not heaps:
            return None
        if not self._last or self._last not in heaps:
            self._last = min(heaps, key=lambda need: heaps[need][0])
        return self._order[heappop(heaps[self._last])]


def _guards(order: Sequence[Apply], needs: Mapping[Apply, set[tuple[Variable, bool]]]) -> dict[Apply, Guard]:
    """Return the guards, with conditions in the order they are computed: one may guard a later one."""
    computed = {variable: place for place, variable in enumerate(chain(*[node.outputs for node in order]))}
    return {
        node: sorted(need, key=lambda pair: (computed.get(pair[0], -1), pair[1]))
        for node, need in needs.items()
        if need
    }
