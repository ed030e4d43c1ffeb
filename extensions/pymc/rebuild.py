"""Build a graph again with other leaves and other nodes, whose types may know fewer lengths.

PyTensor's own replacements assert the lengths that the old types told, which are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort

Rule = Callable[[Apply, list[Any]], Sequence[Variable] | None]


def rebuilt(
    results: Sequence[Variable], rule: Rule, leaves: Mapping[Variable, Variable] | None = None
) -> list[Variable]:
    """Return graphs in which `leaves` are replaced, and nodes by what a rule makes of their new inputs.

    Where the rule returns None, the node is made again from them.
    """
    made: dict[Variable, Variable] = dict(leaves or {})
    for node in io_toposort([], results):
        inputs = [made.get(variable, variable) for variable in node.inputs]
        outputs = rule(node, inputs)
        if outputs is None:
            same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
            outputs = node.outputs if same else _made_again(node, inputs, rule)
        made.update(zip(node.outputs, outputs, strict=True))
    return [made.get(result, result) for result in results]


def _made_again(node: Apply, inputs: list[Any], rule: Rule) -> Sequence[Variable]:
    """Return the outputs of a node of other inputs; an Op that is a graph of old types is that graph."""
    if isinstance(node.op, OpFromGraph):
        inner = node.op.fgraph.unfreeze()
        return rebuilt(inner.outputs, rule, dict(zip(inner.inputs, inputs, strict=True)))
    outputs = node.op.make_node(*inputs).outputs
    return [_broadcasting(new, old) for new, old in zip(outputs, node.outputs, strict=True)]


def _broadcasting(new: Any, old: Any) -> Variable:
    """Return ``new`` with the axes of length 1 that ``old`` has, along which others may be longer."""
    of_one = [getattr(one.type, "broadcastable", ()) for one in (old, new)]
    axes = [axis for axis, (was, still) in enumerate(zip(*of_one, strict=True)) if was and not still]
    made: Variable = pt.specify_broadcastable(new, *axes) if axes else new
    return made
