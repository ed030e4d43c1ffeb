"""The rewrite that joins neighbouring Elemwise nodes into Composites, as far as there are templates.

PyTensor's own decides by whether a scalar Op has C code for PyTensor's C linker, which says nothing
about kernels; so those without a template are hidden from it while it looks for groups.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.rewriting.db import SequenceDB
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.elemwise import (
    FusionOptimizer,
    local_inline_composite_constants,
    local_useless_composite_outputs,
)

from synk.compile.programs.elementwise.body import has_template
from synk.compile.programs.elementwise.dialect import Dialect, native_dialect

TAG = "numpy_kernels"


class NotFused(ScalarOp):
    """A scalar Op without C code, which hides one that must not be fused from PyTensor's fusion."""

    def __init__(self, scalar_op: ScalarOp):
        super().__init__(name=f"not_fused({scalar_op})")
        self.nin, self.nout = scalar_op.nin, scalar_op.nout

    # Scalar Ops of one class are equal, but these stand for different ones.
    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)

    def supports_c_code(self, inputs, outputs):
        return False


class KernelFusion(FusionOptimizer):
    """Fuse Elemwise nodes that kernels can compute.

    Parameters
    ----------
    dialect : Dialect
        Language of the kernels.
    excluded : callable, optional
        Takes the nodes in the order they run; returns variables whose nodes must not be fused.
    """

    def __init__(
        self, dialect: Dialect, excluded: Callable[[Sequence[Apply]], Collection[Variable]] | None = None
    ):
        super().__init__()
        self.dialect, self.excluded = dialect, excluded

    def apply(self, fgraph):
        with self._hidden(fgraph):
            return super().apply(fgraph)

    @contextmanager
    def _hidden(self, fgraph: FunctionGraph) -> Iterator[None]:
        excluded = () if self.excluded is None else self.excluded(fgraph.toposort())
        # The Op is exchanged in the node itself: a new node would have all rewrites look at the graph again.
        hidden = [
            (node, node.op)
            for node in fgraph.apply_nodes
            if isinstance(node.op, Elemwise)
            and (not has_template(node, self.dialect) or any(v in excluded for v in node.outputs))
        ]
        try:
            for node, op in hidden:
                node.op = Elemwise(NotFused(op.scalar_op), op.inplace_pattern)
            yield
        finally:
            for node, op in hidden:
                node.op = op


def register_fusion(tag: str, fusion: KernelFusion) -> None:
    """Add a fusion to PyTensor's rewrites as ``tag``, just before those that make Ops work in place."""
    sequence = SequenceDB()
    optdb.register(f"fusion_into_{tag}", sequence, tag, position=49)
    rewrites = {
        f"elemwise_into_{tag}": fusion,
        f"unused_outputs_of_{tag}": dfs_rewriter(local_useless_composite_outputs),
        f"constants_into_{tag}": dfs_rewriter(local_inline_composite_constants, ignore_newtrees=True),
    }
    for position, (name, rewriter) in enumerate(rewrites.items(), start=1):
        sequence.register(name, rewriter, tag, position=position)


register_fusion(TAG, KernelFusion(native_dialect()))
