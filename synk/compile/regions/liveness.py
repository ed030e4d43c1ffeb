"""Note which nodes of a region read a variable, and which of them is the last.

Pure bookkeeping: by it `memory` is given back, and C texts know whether others read what they compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from pytensor.graph.basic import Apply, Variable


class Liveness:
    """The readers of each variable, by the numbers of nodes in the order they run.

    All nodes inside of loops have one number, behind those of all nodes outside, because a step may read what
    a later node has made in the step before.

    Attributes
    ----------
    at : int
        The number of the node that is being written.
    end : int
        The number of all nodes inside of loops.
    """

    def __init__(self, nodes: Sequence[Apply], outputs: Collection[Variable]):
        self.at, self.end = 0, len(nodes)
        self._kept = frozenset(outputs)  # read when all nodes have run
        self._readers: dict[Variable, list[Apply]] = {}
        self._last: dict[Variable, int] = {}
        for k, node in enumerate(nodes):
            self._read(node, k)

    def readers(self, variable: Variable) -> Sequence[Apply]:
        """Return the nodes that read a variable; inside of `loop`, those of the loop's graph alone."""
        return self._readers.get(variable, ())

    def is_kept(self, variable: Variable) -> bool:
        """Tell whether a variable is read when all nodes have run."""
        return variable in self._kept

    def last_reader(self, variable: Variable) -> int:
        """Return the number of the node after which a variable is not needed any more."""
        return self.end if self.is_kept(variable) else self._last.get(variable, self.at)

    @contextmanager
    def loop(self, outputs: Collection[Variable]) -> Iterator[None]:
        """Within this context, note the readers of a graph with these outputs, which runs in a loop."""
        saved = self.at, self._kept, self._readers
        self._kept, self._readers = self._kept.union(outputs), {}  # graphs may share their inputs
        yield
        self.at, self._kept, self._readers = saved

    def enter(self, nodes: Sequence[Apply]) -> None:
        """Note the nodes of the loop's graph, which are written from now on."""
        for node in nodes:
            self._read(node, self.end)
        self.at = self.end

    def _read(self, node: Apply, number: int) -> None:
        for variable in node.inputs:
            self._last[variable] = number
            self._readers.setdefault(variable, []).append(node)
