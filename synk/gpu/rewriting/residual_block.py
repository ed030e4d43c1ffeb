"""The end of a residual block as one Op, its gradient, and rewrites that put them into programs for GPUs.

    relu(BatchNorm(x) + shortcut)                        -> Residual(x, gamma, beta, shortcut)
    BatchNormGradient(where(y > 0, a + b, 0), x, ...)    -> ResidualGradient(x, y, ..., a, b)

The masked gradient is an output of `ResidualGradient`, since it is the gradient for the shortcut, too. The
rewrites run after `layout` (48.7), so that images have their channels last, and before elementwise Ops are
fused (49), which would put the sums into other kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import SequenceDB
from pytensor.scalar import basic
from pytensor.tensor.elemwise import Elemwise

from synk.gpu.elementwise.cuda_dialect import FUSION
from synk.gpu.kernels.plain_residual import PlainResidual
from synk.ops.activation import ReLU
from synk.ops.batch_norm import BatchNorm, BatchNormGradient, BatchNormOp, check_arrays
from synk.ops.checks import float_tensor, same_shape
from synk.ops.fuse import parts_of_mask, producer_read_once

POSITION = 48.8


class Residual(BatchNormOp):
    """Compute ``y = max(0, batch_norm(x) + shortcut)``, and the statistics that `BatchNorm` returns, too."""

    __props__ = ("eps", "image_layout")
    differentiated = "a program"
    plain = PlainResidual(np)
    image_inputs = (0, 3)

    def __init__(self, eps: float, layout: str):
        self.eps, self.image_layout = eps, layout

    def make_node(self, x, gamma, beta, shortcut):
        norm = BatchNorm(self.eps, layout=self.layout).make_node(x, gamma, beta)
        shortcut = float_tensor("shortcut", shortcut, (norm.inputs[0].type.ndim,), norm.inputs[0].type.dtype)
        return Apply(self, [*norm.inputs, shortcut], [v.type() for v in norm.outputs])

    def output_shapes(self, node, shapes):
        x, gamma, *_ = shapes
        return [x, gamma, gamma]

    def kernel(self, provider, node):
        return provider.residual(self.eps, self.layout)

    def check(self, x, gamma, beta, shortcut):
        check_images(self.image_layout, x, (gamma, beta), shortcut)

    def perform(self, node, inputs, output_storage):
        self.check(*inputs)
        x, *parameters, shortcut = inputs
        BatchNorm(self.eps, layout=self.layout).perform(node, [x, *parameters], output_storage)
        cell = output_storage[0]
        cell[0] = np.maximum(cell[0] + shortcut, np.zeros((), x.dtype))


class ResidualGradient(BatchNormOp):
    """The gradient of `Residual` for x, gamma, beta and the shortcut.

    Its inputs end with the gradients of y, whose sum it takes. The last output is that sum where y > 0, else
    0.
    """

    __props__ = ("n_gradients", "image_layout")
    differentiated = "a program"
    plain = PlainResidual(np)

    def __init__(self, n_gradients: int, layout: str):
        self.n_gradients, self.image_layout = n_gradients, layout

    @property
    def image_inputs(self) -> tuple[int, ...]:  # type: ignore[override]
        """The positions of x, y and the gradients of y; four vectors come between."""
        return (0, 1, *range(6, 6 + self.n_gradients))

    image_outputs = (0, 3)

    def make_node(self, x, y, gamma, beta, mean, inv_std, *gradients):
        norm = BatchNormGradient(layout=self.layout).make_node(y, x, gamma, beta, mean, inv_std)
        y, x, *vectors = norm.inputs
        gradients = [float_tensor("gy", gy, (x.type.ndim,), x.type.dtype) for gy in gradients]
        outputs = [v.type() for v in norm.outputs]
        return Apply(self, [x, y, *vectors, *gradients], [*outputs, outputs[0].type()])

    def output_shapes(self, node, shapes):
        return [shapes[0], shapes[2], shapes[2], shapes[0]]

    def kernel(self, provider, node):
        return provider.residual_gradient(self.layout)

    def check(self, x, y, *rest):
        check_images(self.image_layout, x, rest[:4], y, *rest[4:])


def check_images(layout: str, x: Any, vectors: Any, *others: Any) -> None:
    """Raise ValueError unless the arrays' lengths fit each other; the graph may not have known them."""
    check_arrays(layout, x, *vectors)
    same_shape("x, y, the shortcut and gradients", x, *others)


# --- rewrites ----------------------------------------------------------------------------------------


@node_rewriter([Elemwise])
def residual_sum(fgraph, node):
    """Replace batch norm, sum and rectifier by `Residual`."""
    if not isinstance(node.op.scalar_op, ReLU):
        return None
    total = producer_read_once(fgraph, node.inputs[0], Elemwise)
    if total is None or not isinstance(total.op.scalar_op, basic.Add) or len(total.inputs) != 2:
        return None
    if not _alike(*total.inputs, node.outputs[0]):
        return None
    for term, shortcut in (total.inputs, total.inputs[::-1]):
        norm = producer_read_once(fgraph, term, BatchNorm)
        if norm is not None and not norm.op.relu and _is_last(norm.op, term):
            results = Residual(norm.op.eps, norm.op.layout)(*norm.inputs, shortcut, return_list=True)
            copy_stack_trace(node.outputs[0], results)
            return dict(zip([node.outputs[0], *norm.outputs[1:]], results, strict=True))
    return None


@node_rewriter([BatchNormGradient])
def residual_gradient(fgraph, node):
    """Replace the gradient of batch norm, and the mask and sum before it, by `ResidualGradient`."""
    masked, x, *vectors = node.inputs
    # A masked gradient that only this node reads is left to `fuse`, whose kernel need not write it.
    if node.op.relu or len(fgraph.clients[masked]) < 2 or not _is_last(node.op, x):
        return None
    gradient, y = parts_of_mask(masked)
    if y is None or not _alike(gradient, y, x):
        return None
    total = producer_read_once(fgraph, gradient, Elemwise)
    adds = total is not None and isinstance(total.op.scalar_op, basic.Add) and len(total.inputs) == 2
    gradients = total.inputs if adds and _alike(*total.inputs, x) else [gradient]
    op = ResidualGradient(len(gradients), node.op.layout)
    results = op(x, y, *vectors, *gradients, return_list=True)
    copy_stack_trace(node.outputs, results)
    return dict(zip([*node.outputs, masked], results, strict=True))


def _is_last(op: BatchNormOp, x: Any) -> bool:
    """Return whether the channels of ``x`` are its last axis."""
    return x.type.ndim == 2 or op.layout == "NHWC"


def _alike(*variables: Any) -> bool:
    """Return whether all variables have one dtype and broadcast along the same axes."""
    patterns = {(v.type.dtype, v.type.broadcastable) for v in variables}
    return len(patterns) == 1


def register_residual_blocks() -> None:
    """Register the rewrites with PyTensor, for programs for GPUs only."""
    sequence = SequenceDB()
    optdb.register("residual", sequence, FUSION, position=POSITION)
    for position, rewriter in enumerate((residual_sum, residual_gradient)):
        sequence.register(rewriter.__name__, dfs_rewriter(rewriter), FUSION, position=position)
