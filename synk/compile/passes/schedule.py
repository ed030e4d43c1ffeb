"""Decide in which order nodes run, so that little memory is in use at a time.

PyTensor orders nodes by a walk back from the outputs, so in a training step all the gradients of signals
would come before the first gradient of a weight, and be kept until then with the signals themselves. Here a
node that lets go of more memory than it takes runs as soon as it can; all others keep PyTensor's order.

    order, fgraph -> schedule -> order

Pure: graphs in, an order out. Imports PyTensor and ``memory``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from math import prod

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import Join
from pytensor.tensor.type import TensorType

from synk.compile.passes.memory import Memory

UNKNOWN = 32  # elements along an axis of unknown length: mostly that of rows


def schedule(fgraph: FunctionGraph, order: Sequence[Apply]) -> list[Apply]:
    """Return the nodes in the order to run them.

    Parameters
    ----------
    fgraph : FunctionGraph
        Its ``orderings()`` are kept: those of nodes that overwrite what others read.
    order : sequence of Apply
        All nodes, each after those it needs.
    """
    return _Schedule(fgraph, order).run()


class _Schedule:
    """The state of one scheduling: which nodes have run, and who still reads what."""

    def __init__(self, fgraph: FunctionGraph, order: Sequence[Apply]):
        self._order, self._position = order, {node: index for index, node in enumerate(order)}
        self._memory = Memory(order)
        self._kept = {self._memory.root(variable) for variable in (*fgraph.inputs, *fgraph.outputs)}
        self._needs: dict[Apply, int] = {}
        self._next: dict[Apply, list[Apply]] = defaultdict(list)
        self._readers: dict[Variable, set[Apply]] = defaultdict(set)
        after = fgraph.orderings()
        for node in order:
            before = {variable.owner for variable in node.inputs} | set(after.get(node, ()))
            before &= self._position.keys()
            self._needs[node] = len(before)
            for other in before:
                self._next[other].append(node)
            for variable in node.inputs:
                self._readers[self._memory.root(variable)].add(node)
        self._freeing: list[tuple[int, int]] = []  # bytes taken and not let go of, below 0, and position
        self._done: set[Apply] = set()

    def run(self) -> list[Apply]:
        for node in self._order:
            self._consider(node)
        result: list[Apply] = []
        for node in self._order:
            while self._freeing:
                self._do(self._order[heappop(self._freeing)[1]], result)
            self._do(node, result)
        return result

    def _do(self, node: Apply, result: list[Apply]) -> None:
        if node in self._done:
            return
        self._done.add(node)
        result.append(node)
        for other in self._next[node]:
            self._needs[other] -= 1
            self._consider(other)
        for root in {self._memory.root(variable) for variable in node.inputs}:
            readers = self._readers[root]
            readers.discard(node)
            if len(readers) == 1:
                self._consider(*readers)

    def _consider(self, node: Apply) -> None:
        """Let a node run next if it can, and lets go of more than it takes."""
        if self._needs[node] == 0 and node not in self._done:
            balance = self._taken(node) - self._let_go(node)
            if balance < 0:
                heappush(self._freeing, (balance, self._position[node]))

    def _taken(self, node: Apply) -> int:
        return sum(size(output) for output in node.outputs if not self._has_a_place(output))

    def _has_a_place(self, output: Variable) -> bool:
        """Tell whether a result takes no memory of its own: it is in that of an input, or of a join."""
        parents = self._memory.parents
        if output in parents:
            return True
        # Views of it are made on the way into a join.
        readers = [node for node in self._readers[output] if node.outputs[0] not in parents]
        return bool(readers) and all(isinstance(node.op, Join) for node in readers)

    def _let_go(self, node: Apply) -> int:
        roots = {self._memory.root(variable) for variable in node.inputs} - self._kept
        return sum(size(root) for root in roots if root.owner and self._readers[root] == {node})


def size(variable: Variable) -> int:
    """Return about how many bytes a value takes."""
    kind = variable.type
    if not isinstance(kind, TensorType):
        return 0
    return prod(UNKNOWN if n is None else n for n in kind.shape) * np.dtype(kind.dtype).itemsize
