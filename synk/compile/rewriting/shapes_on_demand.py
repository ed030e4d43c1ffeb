"""The shapes of a graph's variables, inferred when a rewrite asks for them, as PyTensor does from 3.1 on.

ShapesOnDemand -> ShapeFeature.shape_of[variable] -> the symbolic lengths

Before, PyTensor infers all shapes when a graph is made and whenever a node is replaced, and merges those of
the old and the new one, which looks for a dependence between them: a tenth of the time in which a function
is made, and in a deep graph half of it.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.rewriting.shape import ShapeFeature

REPLACED = "ShapeOpt"  # PyTensor's name for the rewriter that `AttachShapes` stands in for
POSITION = 0.1  # its position

NEEDED = hasattr(ShapeFeature, "update_shape")  # which later versions lack


class ShapesOnDemand(ShapeFeature):
    """Shapes of variables that are inferred when they are asked for, and then stay."""

    def on_attach(self, fgraph: FunctionGraph) -> None:
        super().on_attach(fgraph)
        self.shape_of = _Shapes(self)

    def on_import(self, fgraph: FunctionGraph, node: Apply, reason: Any) -> None:
        """Infer nothing yet; also for the nodes of the graph when the feature is attached."""

    def init_r(self, r: Variable) -> None:
        # Others get the lengths that are inferred from what computes them.
        if r.owner is None:
            super().init_r(r)

    def update_shape(self, r: Variable, other_r: Variable) -> None:
        """Leave the shape of what replaces ``other_r`` to be inferred."""

    def infer(self, variable: Variable) -> None:
        """Infer the shape of a variable, and of all that it takes for that."""
        stack = [variable]
        while stack:
            node = stack[-1].owner
            if stack[-1] in self.shape_of:
                stack.pop()
            elif node is None:
                self.init_r(stack.pop())
            elif missing := self._missing(node):
                stack += missing
            else:
                super().on_import(self.fgraph, node, "asked for")

    def _missing(self, node: Apply) -> list[Variable]:
        """Return the inputs whose shapes have to be inferred first."""
        if _are_known(node):
            return []
        return [one for one in node.inputs if one not in self.shape_of]

    def get_node_infer_shape(self, node: Apply) -> Any:
        # Most shapes of networks are in the types, and asking Ops takes a graph for each length.
        return _static(node) if _are_known(node) else super().get_node_infer_shape(node)


class _Shapes(dict[Variable, Any]):
    """The shapes that were inferred; another one is inferred when it is asked for."""

    def __init__(self, feature: ShapesOnDemand):
        super().__init__()
        self._feature = feature

    def __missing__(self, variable: Variable) -> Any:
        self._feature.infer(variable)
        return self[variable]

    def get(self, variable: Variable, default: Any = None) -> Any:
        return self[variable]


def _static(node: Apply) -> list[tuple[int | None, ...]]:
    """Return the lengths of a node's results that their types tell; ``(None,)`` for what is no tensor."""
    return [getattr(output.type, "shape", (None,)) for output in node.outputs]


def _are_known(node: Apply) -> bool:
    """Tell whether the types of a node's results tell all their lengths."""
    return all(None not in shape for shape in _static(node))


class AttachShapes(GraphRewriter):
    """A rewriter that attaches `ShapesOnDemand`; PyTensor's own rewriter removes it at the end."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Attach the feature."""
        fgraph.attach_feature(ShapesOnDemand())
