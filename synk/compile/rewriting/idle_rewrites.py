"""Leave out, for graphs to which they cannot apply, rewrites that take long to find that out.

PyTensor's rewriter, excluded by name -> the same, on graphs that have what it looks for
"""

from collections.abc import Iterator

from pytensor.assumptions.specify import SpecifyAssumptions
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import NodeRewriter, node_rewriter
from pytensor.tensor.basic import Alloc, AllocDiag, Eye
from pytensor.tensor.blockwise import Blockwise

from synk.compile.rewriting.patterns import is_slow_pattern, where_nested
from synk.compile.rewriting.sound_rewrites import GUARDED
from synk.compile.rewriting.wrong_rewrites import LEFT_OUT

APPLICABLE = "synk_applicable"  # the tag of those that are left in

# They compute products with a diagonal matrix, of an orthogonal one and its transpose, or with rows of the
# identity, in another way, and leave out the transposition of a symmetric one. To tell whether a factor is
# one, PyTensor looks at all that it is computed from, for each product anew after each change.
OF_MATRICES = (
    "dot_diag_to_elemwise",
    "orthogonal_dot_transpose_to_eye",
    "selection_dot_to_indexing",
    "useless_symmetric_transpose",
)

LINEAR_ALGEBRA = ("pytensor.tensor.linalg", "pytensor.tensor.nlinalg", "pytensor.tensor.slinalg")


class KnownMatricesFeature(Feature):
    """A note of whether a graph has ever had something that makes a matrix of a known kind.

    All other Ops only pass the kind on. In a later PyTensor others may make some; then products are computed
    as products, which is as right.
    """

    found = False

    def on_attach(self, fgraph: FunctionGraph) -> None:
        self.found = any(map(_makes_known_matrix, fgraph.apply_nodes))

    def on_import(self, fgraph: FunctionGraph, node: Apply, reason: object) -> None:
        self.found = self.found or _makes_known_matrix(node)

    def clone(self) -> "KnownMatricesFeature":
        return KnownMatricesFeature()


def _may_have_known_matrices(fgraph: FunctionGraph) -> bool:
    """Tell whether a factor of a graph may be a matrix of a known kind."""
    for feature in fgraph._features:
        if isinstance(feature, KnownMatricesFeature):
            return feature.found
    feature = KnownMatricesFeature()
    fgraph.attach_feature(feature)
    return feature.found


def _makes_known_matrix(node: Apply) -> bool:
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, Alloc):
        return node.outputs[0].type.ndim > 1
    if isinstance(op, Eye | AllocDiag | SpecifyAssumptions) or type(op).__module__.startswith(LINEAR_ALGEBRA):
        return True
    return any(map(_is_matrix, node.inputs))


def _is_matrix(variable: Variable) -> bool:
    """Tell whether a constant is more than a row, a column or a number."""
    return isinstance(variable, Constant) and sum(n != 1 for n in getattr(variable.type, "shape", ())) > 1


def _where_known_matrices(rewriter: NodeRewriter) -> NodeRewriter:
    @node_rewriter(rewriter.tracks())
    def applicable(fgraph, node):
        return rewriter.transform(fgraph, node) if _may_have_known_matrices(fgraph) else None

    return applicable


def _applicable(database: str) -> Iterator[tuple[str, NodeRewriter]]:
    """Yield names of rewrites in one of PyTensor's databases, each with what it is replaced by."""
    for name, rewriters in tuple(optdb[database].__db__.items()):
        for one in tuple(rewriters):
            if name in OF_MATRICES:
                yield name, _where_known_matrices(one)
            elif is_slow_pattern(one) and one.name == name and name not in (*GUARDED, *LEFT_OUT):
                yield name, where_nested(one)


IDLE = set()  # the names
for _database in ("canonicalize", "stabilize", "specialize"):
    for _name, _rewriter in _applicable(_database):
        IDLE.add(_name)
        optdb[_database].register(f"applicable_{_name}", _rewriter, APPLICABLE)
