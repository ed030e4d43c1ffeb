"""Rewrites that draw a bias and a rectifier into the Op before them.

    relu(BatchNorm(x))                      -> BatchNorm{relu}(x)
    BatchNormGradient(where(y > 0, g, 0))   -> BatchNormGradient{relu}(g), for the y of such a BatchNorm
    Conv2d(x, w) + bias of each channel     -> Conv2d(x, w, bias)
    relu(Conv2d(x, w, ...))                 -> Conv2d{relu}(x, w, ...)

Each saves passes over an image, and the memory of what stood between. Nothing is drawn in that another node,
or the user, reads. They run when PyTensor's own rewrites have made the graph canonical, before layouts are
chosen (48.7) and elementwise Ops fused (49), wherever ``fast_run`` is included; without them:
``array_mode().excluding("fuse_relu")``.
"""

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import copy_stack_trace, dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import SequenceDB
from pytensor.scalar import basic
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from synk.ops.activation import ReLU
from synk.ops.batch_norm import BatchNorm, BatchNormGradient
from synk.ops.convolve import Conv2d

POSITION = 48.3


@node_rewriter([Elemwise])
def relu_after_batch_norm(fgraph, node):
    """Rectify in the kernel of the batch norm."""
    norm = _producer(fgraph, node, BatchNorm)
    if norm is None:
        return None
    op = BatchNorm(norm.op.eps, relu=True, layout=norm.op.layout)
    y, *statistics = op(*norm.inputs, return_list=True)
    copy_stack_trace(node.outputs[0], y)
    # The statistics come from the same pass; the old node goes when nothing reads it.
    return dict(zip([node.outputs[0], *norm.outputs[1:]], [y, *statistics], strict=True))


@node_rewriter([BatchNormGradient])
def mask_of_batch_norm_gradient(fgraph, node):
    """Find again in the kernel where the output was positive."""
    masked, *rest = node.inputs
    if node.op.relu or len(fgraph.clients[masked]) > 1:
        return None
    gradient, y = rectified(masked)
    forward = None if y is None else y.owner
    if forward is None or not isinstance(forward.op, BatchNorm) or not forward.op.relu:
        return None
    if y is not forward.outputs[0] or rest != [*forward.inputs, *forward.outputs[1:]]:
        return None
    results = BatchNormGradient(relu=True, layout=node.op.layout)(gradient, *rest, return_list=True)
    copy_stack_trace(node.outputs, results)
    return results


@node_rewriter([Elemwise])
def bias_after_convolution(fgraph, node):
    """Add the bias in the kernel of the convolution; other terms of the sum stay."""
    if not isinstance(node.op.scalar_op, basic.Add):
        return None
    for place, term in enumerate(node.inputs):
        convolution = sole(fgraph, term, Conv2d)
        if convolution is None or len(convolution.inputs) > 2 or convolution.op.relu:
            continue
        found = [k for k, other in enumerate(node.inputs) if k != place and _bias(other, term) is not None]
        if not found:
            continue
        with_bias = convolution.op(*convolution.inputs, _bias(node.inputs[found[0]], term))
        copy_stack_trace(node.outputs[0], with_bias)
        others = [other for k, other in enumerate(node.inputs) if k not in (place, found[0])]
        return [node.op(with_bias, *others) if others else with_bias]
    return None


@node_rewriter([Elemwise])
def relu_after_convolution(fgraph, node):
    """Rectify in the kernel of the convolution."""
    convolution = _producer(fgraph, node, Conv2d)
    if convolution is None:
        return None
    y = Conv2d(convolution.op.convolution, relu=True)(*convolution.inputs)
    copy_stack_trace(node.outputs[0], y)
    return [y]


def _producer(fgraph: Any, node: Any, kind: type) -> Any:
    """Return the node of class ``kind``, itself not rectified, whose result ``node`` alone rectifies."""
    if not isinstance(node.op.scalar_op, ReLU):
        return None
    found = sole(fgraph, node.inputs[0], kind)
    return None if found is None or found.op.relu else found


def sole(fgraph: Any, variable: Any, kind: type) -> Any:
    """Return the node of class ``kind`` whose first output ``variable`` is, if it has one reader."""
    node = variable.owner
    made = node is not None and isinstance(node.op, kind) and variable is node.outputs[0]
    return node if made and len(fgraph.clients[variable]) == 1 else None


def rectified(variable: Any) -> tuple[Any, Any]:
    """Return ``g, y`` of ``where(y > 0, g, 0)``, the gradient of a rectifier; else twice None."""
    mask = variable.owner
    if mask is None or not _is(mask, basic.Switch) or not _zero(mask.inputs[2]):
        return None, None
    # One number for many, as in the gradient of a mean, gets the shape of y here and nowhere else.
    if mask.inputs[1].type.broadcastable != variable.type.broadcastable:
        return None, None
    comparison = mask.inputs[0].owner
    if comparison is None or not _is(comparison, basic.GT) or not _zero(comparison.inputs[1]):
        return None, None
    return mask.inputs[1], comparison.inputs[0]


def _is(node: Any, kind: type) -> bool:
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, kind)


def _zero(variable: Any) -> bool:
    return isinstance(variable, Constant) and not variable.data.any()


def _bias(variable: Any, images: Any) -> Any:
    """Return the vector that ``variable`` spreads over ``images``, one number a channel, else None."""
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle) or node.op.new_order != ("x", 0, "x", "x"):
        return None
    (vector,) = node.inputs
    # One number for all channels is no bias of each, nor are many for one channel; and another dtype would
    # have to be converted.
    one = vector.type.broadcastable[0] or images.type.broadcastable[1]
    return None if one or vector.type.dtype != images.type.dtype else vector


def register() -> None:
    """Add the rewrites to PyTensor's."""
    sequence = SequenceDB()
    optdb.register("fuse_relu", sequence, "fast_run", position=POSITION)
    rewriters = (
        bias_after_convolution,
        relu_after_convolution,
        relu_after_batch_norm,
        mask_of_batch_norm_gradient,
    )
    for position, rewriter in enumerate(rewriters):
        sequence.register(rewriter.__name__, dfs_rewriter(rewriter), "fast_run", position=position)


register()
