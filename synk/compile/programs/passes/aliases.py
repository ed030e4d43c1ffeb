"""Find out which values share memory, and when that memory is read and overwritten.

The result of a node may lie in the memory of an input: as a view of it (the Op's ``view_map``) or as its new
content (``destroy_map``). Followed back from view to input, every value lies in the memory of its root.

    order -> Aliases: later passes ask it, and tell it what else is overwritten
"""

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Apply, Variable


class Aliases:
    """The values that share memory, and the nodes that read it last or overwrite it."""

    def __init__(self, order: Sequence[Apply]):
        self.position = {node: index for index, node in enumerate(order)}
        self.parents: dict[Variable, Variable] = {}  # result -> the input of its node in whose memory it is
        self.overwritten: set[Variable] = set()  # values that are lost before the program ends
        self._roots: dict[Variable, Variable] = {}
        self._views: set[Variable] = set()
        self._last_read: dict[Variable, int] = {}  # by root
        for index, node in enumerate(order):
            self._last_read.update((self.root(variable), index) for variable in node.inputs)
            for output, positions in node.op.view_map.items():
                self._alias(node.outputs[output], node.inputs[positions[0]], view=True)
            for output, positions in node.op.destroy_map.items():
                self._alias(node.outputs[output], node.inputs[positions[0]], view=False)
                self._overwrite(node.inputs[positions[0]])

    def root(self, variable: Variable) -> Variable:
        """Return the value that owns the memory in which ``variable`` lies."""
        while variable in self._roots:
            variable = self._roots[variable]
        return variable

    def is_view(self, variable: Variable) -> bool:
        """Tell whether ``variable`` may be a part of its root's memory, or have other strides."""
        return variable in self._views

    def read_last(self, root: Variable, node: Apply) -> bool:
        """Tell whether ``node`` is the last to read the memory of ``root``."""
        return self._last_read.get(root) == self.position[node]

    def take_over(self, output: Variable, source: Variable) -> None:
        """Note that ``output`` is written into the memory of ``source``, which nothing reads any more."""
        root = self.root(source)
        self._last_read[root] = max(self._last_read[root], self._last_read.get(output, -1))
        self._roots[output] = root

    def free(self, target: Variable, node: Apply) -> bool:
        """Tell whether neither ``node`` nor any later one reads the memory of ``target``."""
        return self._last_read.get(target, -1) < self.position[node]

    def sharing(self, outputs: Sequence[Variable], update_targets: Mapping[int, Variable]) -> set[int]:
        """Return the outputs that lie in an updated input's array, except new values that fill their own.

        ``update_targets`` maps an output, the new value of an input, to that input.
        """
        targets = set(update_targets.values())
        return {
            k
            for k, output in enumerate(outputs)
            if self.root(output) in targets
            and (self.root(output) is not update_targets.get(k) or output in self._views)
        }

    def _alias(self, result: Variable, source: Variable, view: bool) -> None:
        self.parents[result] = source
        self._roots[result] = self.root(source)
        if view or source in self._views:
            self._views.add(result)

    def _overwrite(self, variable: Variable | None) -> None:
        while variable is not None and variable not in self.overwritten:
            self.overwritten.add(variable)
            variable = self.parents.get(variable)
