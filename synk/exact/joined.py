"""Join all-reduces of a graph that do not depend on each other to one, which costs less than many small ones.

results -> nodes by the number of collectives before them -> one all-reduce per depth, operation and dtype
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable

from synk.compile.programs.graphs.origin import built_as, remade
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.run_values import ranks


def joined(results: Sequence[Variable]) -> list[Variable]:
    """Return the same results, of a graph with fewer all-reduces."""
    nodes = topological(results)
    if sum(isinstance(node.op, AllReduceOp) for node in nodes) < 2:
        return list(results)
    replaced: dict[Variable, Variable] = {}
    by_depth = _by_depth(nodes)
    for depth in sorted(by_depth):
        groups: dict[tuple[str, str], list[Apply]] = {}
        for node in by_depth[depth]:
            here = remade(node, [replaced.get(variable, variable) for variable in node.inputs])
            replaced.update(zip(node.outputs, here.outputs, strict=True))
            if isinstance(node.op, AllReduceOp):
                groups.setdefault((node.op.op, node.inputs[0].type.dtype), []).append(node)
        for (op, _), group in groups.items():
            _join(op, group, replaced)
    return [replaced.get(result, result) for result in results]


def _by_depth(nodes: Sequence[Apply]) -> dict[int, list[Apply]]:
    """Return the nodes by depth: the longest chain of collectives on which a node depends."""
    behind: dict[Variable, int] = {}
    depths: dict[int, list[Apply]] = {}
    for node in nodes:
        depth = max((behind.get(variable, 0) for variable in node.inputs), default=0)
        depths.setdefault(depth, []).append(node)
        behind.update(dict.fromkeys(node.outputs, depth + isinstance(node.op, CollectiveOp)))
    return depths


def _join(op: str, group: Sequence[Apply], replaced: dict[Variable, Any]) -> None:
    """Build one all-reduce for the nodes of a group, and enter its outputs for theirs in ``replaced``."""
    outputs = [variable for node in group for variable in node.outputs]
    if len(group) < 2:
        return
    arrays = [replaced.get(variable, variable) for node in group for variable in node.inputs[:-1]]
    together = [built_as(one, *outputs) for one in AllReduceOp(op)(*arrays, ranks)]
    replaced.update(zip(outputs, together, strict=True))
