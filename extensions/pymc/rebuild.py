"""Rebuild a graph with other leaves and other nodes, whose types may have fewer static lengths.

PyTensor's own replacements assert the static lengths of the old types, which hold in one process only.
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
    """Return graphs with `leaves` replaced, and every node replaced by what the rule returns for it.

    The rule gets a node and its new inputs. If it returns None, the node's Op is applied to the new inputs.
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
    """Apply a node's Op to other inputs and return the outputs; rebuild the inner graph of an OpFromGraph."""
    if isinstance(node.op, OpFromGraph):
        inner = node.op.fgraph.unfreeze()
        return rebuilt(inner.outputs, rule, dict(zip(inner.inputs, inputs, strict=True)))
    outputs = node.op.make_node(*inputs).outputs
    return [_broadcasting(new, old) for new, old in zip(outputs, node.outputs, strict=True)]


def _broadcasting(new: Any, old: Any) -> Variable:
    """Return ``new``, with those axes marked broadcastable (of length 1) that are so in ``old``."""
    of_one = [getattr(one.type, "broadcastable", ()) for one in (old, new)]
    axes = [axis for axis, (was, still) in enumerate(zip(*of_one, strict=True)) if was and not still]
    made: Variable = pt.specify_broadcastable(new, *axes) if axes else new
    return made
