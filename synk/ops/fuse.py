"""Rewrites that join a bias and a rectifier with the Op before them.

    relu(BatchNorm(x))                      -> BatchNorm{relu}(x), and of a GroupNorm
    BatchNormGradient(where(y > 0, g, 0))   -> BatchNormGradient{relu}(g), for the y of such a BatchNorm
    Conv2d(x, w) + bias of each channel     -> Conv2d(x, w, bias)
    relu(Conv2d(x, w, ...))                 -> Conv2d{relu}(x, w, ...)

Each saves passes over the images, and the memory of a result between two Ops. A result that another node
reads, or the user, is left as it is. The rewrites run after PyTensor's own have made the graph canonical,
before layouts are chosen (48.7) and elementwise Ops fused (49), in every mode that includes ``fast_run``;
``array_mode().excluding("fuse_relu")`` leaves them out.
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
from synk.ops.group_norm import GroupNorm, GroupNormGradient

POSITION = 48.3

# Norms whose kernels rectify, by their gradients: all have the same order of inputs and outputs.
NORMS: dict[type, Any] = {BatchNormGradient: BatchNorm, GroupNormGradient: GroupNorm}


@node_rewriter([Elemwise])
def relu_after_norm(fgraph, node):
    """Replace the rectifier of a norm by a norm whose kernel rectifies."""
    norm = _rectified_producer(fgraph, node, tuple(NORMS.values()))
    if norm is None:
        return None
    y, *statistics = norm.op.rectified()(*norm.inputs, return_list=True)
    copy_stack_trace(node.outputs[0], y)
    # The new node computes the statistics, too, so that nothing reads the old node any more.
    return dict(zip([node.outputs[0], *norm.outputs[1:]], [y, *statistics], strict=True))


@node_rewriter(list(NORMS))
def mask_of_norm_gradient(fgraph, node):
    """Replace the mask of the gradient of a rectified norm: the kernel computes the sign of y again."""
    masked, *rest = node.inputs
    if node.op.relu or len(fgraph.clients[masked]) > 1:
        return None
    gradient, y = parts_of_mask(masked)
    forward = None if y is None else y.owner
    if forward is None or not isinstance(forward.op, NORMS[type(node.op)]) or not forward.op.relu:
        return None
    if y is not forward.outputs[0] or rest != [*forward.inputs, *forward.outputs[1:]]:
        return None
    results = node.op.rectified()(gradient, *rest, return_list=True)
    copy_stack_trace(node.outputs, results)
    return results


@node_rewriter([Elemwise])
def bias_after_convolution(fgraph, node):
    """Replace a convolution and a bias that is added to it by one node; other terms of the sum stay."""
    if not isinstance(node.op.scalar_op, basic.Add):
        return None
    for place, term in enumerate(node.inputs):
        convolution = producer_read_once(fgraph, term, Conv2d)
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
    """Replace the rectifier of a convolution by a convolution whose kernel rectifies."""
    convolution = _rectified_producer(fgraph, node, Conv2d)
    if convolution is None:
        return None
    y = Conv2d(convolution.op.convolution, relu=True)(*convolution.inputs)
    copy_stack_trace(node.outputs[0], y)
    return [y]


def _rectified_producer(fgraph: Any, node: Any, kind: Any) -> Any:
    """Return the node of Op class ``kind`` whose output ``node`` rectifies; None if it has other readers."""
    if not isinstance(node.op.scalar_op, ReLU):
        return None
    found = producer_read_once(fgraph, node.inputs[0], kind)
    return None if found is None or found.op.relu else found


def producer_read_once(fgraph: Any, variable: Any, kind: Any) -> Any:
    """Return the node of Op class ``kind`` whose first output is ``variable``, if that has one reader."""
    node = variable.owner
    made = node is not None and isinstance(node.op, kind) and variable is node.outputs[0]
    return node if made and len(fgraph.clients[variable]) == 1 else None


def parts_of_mask(variable: Any) -> tuple[Any, Any]:
    """Return ``g, y`` of the gradient of a rectifier, ``where(y > 0, g, 0)``; of others None, None."""
    mask = variable.owner
    if mask is None or not _is(mask, basic.Switch) or not _zero(mask.inputs[2]):
        return None, None
    # A g that is broadcast, as in the gradient of a mean, gets the shape of y only by this node.
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
    """Return the vector, one number a channel, that ``variable`` broadcasts to ``images``; else None."""
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle) or node.op.new_order != ("x", 0, "x", "x"):
        return None
    (vector,) = node.inputs
    # A vector of one number is broadcast over channels, which kernels do not do; nor do they convert dtypes.
    one = vector.type.broadcastable[0] or images.type.broadcastable[1]
    return None if one or vector.type.dtype != images.type.dtype else vector


def register() -> None:
    """Add the rewrites to PyTensor's."""
    sequence = SequenceDB()
    optdb.register("fuse_relu", sequence, "fast_run", position=POSITION)
    rewriters = (
        bias_after_convolution,
        relu_after_convolution,
        relu_after_norm,
        mask_of_norm_gradient,
    )
    for position, rewriter in enumerate(rewriters):
        sequence.register(rewriter.__name__, dfs_rewriter(rewriter), "fast_run", position=position)


register()
