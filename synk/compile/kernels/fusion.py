"""The rewrite that joins neighbouring Elemwise nodes into Composites, as far as there are templates.

PyTensor's own decides by whether a scalar Op has C code for PyTensor's C linker, which says nothing
about kernels; so those without a template are hidden from it while it looks for groups.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pytensor.compile.mode import optdb
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

from synk.compile.kernels.body import has_template
from synk.compile.kernels.compiler import vector_functions
from synk.compile.kernels.dialect import Dialect, c_dialect

TAG = "numpy_kernels"


class Apart(ScalarOp):
    """Stands for a scalar Op that must stay outside of Composites: it has no code."""

    def __init__(self, scalar_op: ScalarOp):
        super().__init__(name=f"apart({scalar_op})")
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
    """

    def __init__(self, dialect: Dialect):
        super().__init__()
        self.dialect = dialect

    def apply(self, fgraph):
        with self._apart(fgraph):
            return super().apply(fgraph)

    @contextmanager
    def _apart(self, fgraph: FunctionGraph) -> Iterator[None]:
        # The Op is exchanged in the node itself: a new node would have all rewrites look at the graph again.
        hidden = [
            (node, node.op)
            for node in fgraph.apply_nodes
            if isinstance(node.op, Elemwise) and not has_template(node, self.dialect)
        ]
        try:
            for node, op in hidden:
                node.op = Elemwise(Apart(op.scalar_op), op.inplace_pattern)
            yield
        finally:
            for node, op in hidden:
                node.op = op


def register_fusion() -> None:
    """Add the rewrite to PyTensor's, just before those that make Ops work in place."""
    sequence = SequenceDB()
    optdb.register("kernel_fusion", sequence, TAG, position=49)
    clean_up = {
        "unused_kernel_outputs": dfs_rewriter(local_useless_composite_outputs),
        "constants_into_kernels": dfs_rewriter(local_inline_composite_constants, ignore_newtrees=True),
    }
    sequence.register("elemwise_into_kernels", KernelFusion(c_dialect(vector_functions())), TAG, position=1)
    for position, (name, rewriter) in enumerate(clean_up.items(), start=2):
        sequence.register(name, rewriter, TAG, position=position)
