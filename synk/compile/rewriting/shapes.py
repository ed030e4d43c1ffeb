"""PyTensor's bookkeeping of shapes, held to linear time in deep graphs.

When a node is replaced, the shape of the new result is merged with that of the old one, unless one
depends on the other. PyTensor 3.0 looks for that through everything the old shape was computed from,
which takes quadratic time in a deep graph: half the compilation of 2,000 nodes. Here it looks a little
way, and then keeps what the new node says of its own shape.
"""

from itertools import islice

from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.traversal import ancestors
from pytensor.tensor.rewriting.shape import ShapeFeature

REPLACED = "ShapeOpt"  # PyTensor's name for the rewriter that `NearShapes` stands in for
POSITION = 0.1  # its position
NEAR = 100  # variables

NEEDED = hasattr(ShapeFeature, "update_shape")  # later versions keep shapes another way


class NearShapeFeature(ShapeFeature):
    """Shapes of all variables, merged where that is easy to decide."""

    def get_node_infer_shape(self, node):
        # Most shapes of networks are in the types, and asking Ops takes a graph for each length.
        static = [getattr(output.type, "shape", (None,)) for output in node.outputs]
        return super().get_node_infer_shape(node) if any(None in shape for shape in static) else static

    def update_shape(self, r, other_r):
        if r in self.shape_of and self._is_deep(self.shape_of.get(other_r) or ()):
            return
        super().update_shape(r, other_r)

    @staticmethod
    def _is_deep(shape) -> bool:
        return next(islice(ancestors(shape), NEAR, None), None) is not None


class NearShapes(GraphRewriter):
    """Attach `NearShapeFeature`; PyTensor's own rewriter takes it off again."""

    def apply(self, fgraph):
        fgraph.attach_feature(NearShapeFeature())
