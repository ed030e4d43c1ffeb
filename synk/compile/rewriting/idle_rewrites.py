"""Leave out, for graphs to which they cannot apply, rewrites that take long to find that out.

PyTensor's rewriter, excluded by name -> the same, on graphs that have what it looks for
"""

from pytensor.assumptions.specify import SpecifyAssumptions
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import NodeRewriter, node_rewriter
from pytensor.tensor.basic import Alloc, AllocDiag, Eye
from pytensor.tensor.blockwise import Blockwise

APPLICABLE = "synk_applicable"  # the tag of those that are left in

# Scales rows or columns in the place of a product with a diagonal matrix. To tell whether a factor is
# diagonal, PyTensor looks at all that it is computed from, for each product anew after each change.
IDLE = ("dot_diag_to_elemwise",)


class DiagonalsFeature(Feature):
    """A note of whether a graph has ever had something that makes a diagonal matrix; others only pass it on.

    In a later PyTensor other Ops may make some; then products are computed as products, which is as right.
    """

    found = False

    def on_attach(self, fgraph: FunctionGraph) -> None:
        self.found = any(map(_makes_diagonal, fgraph.apply_nodes))

    def on_import(self, fgraph: FunctionGraph, node: Apply, reason: object) -> None:
        self.found = self.found or _makes_diagonal(node)

    def clone(self) -> "DiagonalsFeature":
        return DiagonalsFeature()


def _may_have_diagonals(fgraph: FunctionGraph) -> bool:
    """Tell whether a product of a graph may have a diagonal factor."""
    for feature in fgraph._features:
        if isinstance(feature, DiagonalsFeature):
            return feature.found
    feature = DiagonalsFeature()
    fgraph.attach_feature(feature)
    return feature.found


def _makes_diagonal(node: Apply) -> bool:
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, Alloc):
        return node.outputs[0].type.ndim > 1
    return isinstance(op, Eye | AllocDiag | SpecifyAssumptions) or any(map(_is_matrix, node.inputs))


def _is_matrix(variable: Variable) -> bool:
    """Tell whether a constant is more than a row, a column or a number."""
    return isinstance(variable, Constant) and sum(n != 1 for n in getattr(variable.type, "shape", ())) > 1


def _where_applicable(rewriter: NodeRewriter) -> NodeRewriter:
    @node_rewriter(rewriter.tracks())
    def applicable(fgraph, node):
        return rewriter.transform(fgraph, node) if _may_have_diagonals(fgraph) else None

    return applicable


for _name in IDLE:
    for _database in ("canonicalize", "stabilize", "specialize"):
        for _rewriter in tuple(optdb[_database].__db__.get(_name, ())):
            optdb[_database].register(f"applicable_{_name}", _where_applicable(_rewriter), APPLICABLE)
