"""Compare the graphs of update rules, and read their nodes.

graphs of one rule for several parameters -> Rules.number: equal where they compute the same
-> Rules.build -> one graph of the rule, of other leaves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import Subtensor, get_constant_idx
from pytensor.tensor.variable import TensorConstant

from synk.exact.run_values import describe


class NotElementwise(ValueError):
    """Updates that cannot be computed part by part; the message says why."""


class Rules:
    """Rules by number: two graphs have the same number if they compute the same from corresponding leaves.

    The key of a leaf is a tuple of its kind and what it is; that of a node has its Op, which of the node's
    outputs it is, and the numbers of its inputs.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._variables: dict[int, Variable] = {}

    def number(self, key: tuple[Any, ...]) -> int:
        """Return the number of the rule with this key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def number_of(self, variable: Variable) -> int:
        """Return the number of a graph that is read as it is, with all of its own leaves."""
        known: dict[Variable, int] = {}
        for node in io_toposort([], [variable]):
            for one in node.inputs:
                known.setdefault(one, self.number(_leaf_key(one)) if one.owner is None else -1)
            read = [known[one] for one in node.inputs]
            known |= {one: self.number((node.op, k, *read)) for k, one in enumerate(node.outputs)}
        found = known[variable] if variable.owner is not None else self.number(_leaf_key(variable))
        self._variables.setdefault(found, variable)
        return found

    def build(self, rules: Sequence[int], leaves: Mapping[Any, Any]) -> list[Any]:
        """Return the graphs of rules; ``leaves`` are the variables in place of leaves, by key."""
        made = self._variables | {self.number(key): variable for key, variable in leaves.items()}
        for key, number in self._numbers.items():  # a node's inputs come before it
            if number not in made and isinstance(key[0], Elemwise) and all(one in made for one in key[2:]):
                made[number] = key[0](*(made[one] for one in key[2:]))
        return [made[number] for number in rules]


def _leaf_key(variable: Variable) -> tuple[Any, ...]:
    if isinstance(variable, TensorConstant):
        return "constant", variable.type, variable.data.tobytes()
    return "variable", variable


def adds_up(node: Apply) -> bool:
    """Tell whether a node adds up all elements of a vector."""
    return isinstance(node.op, CAReduce) and isinstance(node.op.scalar_op, Add) and node.outputs[0].ndim == 0


def constant_index(node: Apply) -> Any:
    """Return the index of a Subtensor of a vector: an int or a slice of step 1; None if it is another."""
    if not isinstance(node.op, Subtensor):
        return None
    try:
        (index,) = get_constant_idx(node.op.idx_list, node.inputs)
    except NotScalarConstantError:
        return None
    return index if not isinstance(index, slice) or index.step in (None, 1) else None


def elementwise_node(variable: Variable) -> Any:
    """Return the node that computes a variable element by element; raise NotElementwise if it does not."""
    node = variable.owner
    if node is None:
        raise NotElementwise(f"{describe(variable)} is an array, and updates nothing along its elements")
    passes = isinstance(node.op, SpecifyShape)
    if isinstance(node.op, DimShuffle):  # of a number, to be read beside arrays
        passes = node.inputs[0].type.ndim == 0
    if not passes and not (isinstance(node.op, Elemwise) and len(node.outputs) == 1):
        raise NotElementwise(f"{node.op} is not elementwise")
    return node
