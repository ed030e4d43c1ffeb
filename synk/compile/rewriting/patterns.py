"""Try to match a pattern only where its Ops follow one another in the graph.

A rewrite of PyTensor 3.0 that is written as a pattern, such as ``log(sigmoid(x)) -> -softplus(-x)``, finds
matches by unification. That takes long for each node, and sorts its methods at its first use, which is a
quarter of the time in which the gradient of a small perceptron is rewritten. Later versions match by
themselves.

    rewriter -> where_nested -> the same, for nodes at which a look at the Ops alone does not rule it out
"""

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import NodeRewriter, PatternNodeRewriter, node_rewriter


def is_slow_pattern(rewriter: Any) -> bool:
    """Tell whether a rewriter matches its pattern by unification."""
    return isinstance(rewriter, PatternNodeRewriter) and isinstance(rewriter.in_pattern, Sequence)


def where_nested(rewriter: NodeRewriter) -> NodeRewriter:
    """Return a rewriter that does the same; it is ``rewriter`` itself if that matches no pattern slowly."""
    if not is_slow_pattern(rewriter):
        return rewriter
    nodes = rewriter.get_nodes or (lambda fgraph, node: [node])

    @node_rewriter(rewriter.tracks())
    def nested(fgraph, node):
        if any(_may_match(rewriter.in_pattern, one) for one in nodes(fgraph, node)):
            return rewriter.transform(fgraph, node)

    return nested


def _may_match(pattern: Any, node: Apply | None) -> bool:
    """Tell whether the Ops of a pattern are those of a node and its inputs; nothing else is compared."""
    head, *arguments = pattern
    if node is None or (isinstance(head, Op) and node.op != head):
        return False
    both = zip(arguments, node.inputs, strict=False)
    return all(_may_match(one, variable.owner) for one, variable in both if isinstance(one, type(pattern)))
