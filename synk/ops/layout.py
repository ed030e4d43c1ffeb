"""The rewrite of a graph that keeps its images with their channels last, from one image Op to the next.

Users write images as NCHW: (image, channel, height, width). Convolutions, and the Ops between them, are
fastest in NHWC, with the channels of a pixel side by side. One walk over the graph converts it all, so that
no image is converted back and forth:

    image in NCHW -> copied once -> image Ops, and Ops between them, in NHWC -> views in NCHW

Every image Op computes in NHWC, and so does every Elemwise, reduction or join that reads a converted image.
All other Ops get a view in NCHW of a converted image, which costs nothing.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, copy_stack_trace
from pytensor.tensor.basic import Alloc, Join, alloc, constant, join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CpuContiguous

from synk.compile.compat import join_pieces
from synk.ops.image import ImageOp

POSITION = 48.7  # after PyTensor's rewrites that simplify graphs and infer shapes, before elementwise fusion

LAST = (0, 2, 3, 1)  # axes of NCHW in the order of NHWC
FIRST = (0, 3, 1, 2)  # axes of NHWC in the order of NCHW


class ChannelsLast(GraphRewriter):
    """Rewrite a graph so that its images have their channels last."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite ``fgraph`` in place; a graph without image Ops stays as it is."""
        order = fgraph.toposort()
        if not any(isinstance(node.op, ImageOp) for node in order):
            return
        images = Images()
        for node in order:
            for old, new in zip(node.outputs, converted(node.op, node, images), strict=False):
                copy_stack_trace(old, new)
                images.replaced[old] = new
        # The last results are replaced first; then only nodes that are not converted still read earlier ones.
        for old, new in reversed(images.replaced.items()):
            if fgraph.clients.get(old):
                fgraph.replace(old, new, reason="channels_last", import_missing=True)


class Images:
    """The images of a graph for which a variable with the channels last has been made."""

    def __init__(self) -> None:
        # Results of converted nodes, and the variables, in the old order of axes, that replace them.
        self.replaced: dict[Variable, Variable] = {}
        self._inside: dict[Variable, Variable] = {}

    def __contains__(self, variable: Variable) -> bool:
        return variable in self._inside

    def put(self, old: Variable, new: Variable) -> Variable:
        """Remember ``new`` as the image ``old`` with its channels last; return a view of it in NCHW."""
        self._inside[old] = new
        copy_stack_trace(old, new)  # an error names the user's line, not that of this rewrite
        return new.dimshuffle(FIRST)

    def view(self, variable: Variable) -> Variable:
        """Return a variable of four axes with its second axis last; its memory may stay in NCHW order."""
        if variable in self._inside:
            return self._inside[variable]
        if isinstance(variable, Constant):
            return constant(np.ascontiguousarray(np.transpose(variable.data, LAST)))
        if variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
            (source,), old = variable.owner.inputs, variable.owner.op.new_order
            return source.dimshuffle([old[axis] for axis in LAST])
        return variable.dimshuffle(LAST)

    def image(self, variable: Variable) -> Variable:
        """Return an image in NHWC whose memory has that order, too; it is copied where necessary."""
        if variable not in self._inside:
            spread = self._spread(variable)
            self._inside[variable] = CpuContiguous()(self.view(variable)) if spread is None else spread
        return self._inside[variable]

    def _spread(self, variable: Variable) -> Variable | None:
        """Return an Alloc made anew in NHWC, if ``variable`` is one: then no image needs to be copied."""
        if variable.owner is None or not isinstance(variable.owner.op, Alloc):
            return None
        value, *shape = variable.owner.inputs
        if value.type.ndim not in (0, 4):
            return None
        return alloc(self.view(value) if value.type.ndim else value, *[shape[axis] for axis in LAST])


@singledispatch
def converted(op: Any, node: Apply, images: Images) -> list[Variable]:
    """Return variables, computed in NHWC, to replace the outputs of ``node``; none, to leave it as it is.

    A function is registered for each class of Ops that can be converted.
    """
    return []


@converted.register(ImageOp)
def image_op(op, node, images):
    """Return the outputs of the same image Op in NHWC."""
    matrix = node.inputs[op.image_inputs[0]].type.ndim == 2  # a matrix has no layout to change
    if op.layout == "NHWC" or matrix:
        return []
    inputs = [
        images.image(variable) if k in op.image_inputs else variable for k, variable in enumerate(node.inputs)
    ]
    outputs = op.with_layout("NHWC").make_node(*inputs).outputs
    return [
        images.put(old, new) if k in op.image_outputs else new
        for k, (old, new) in enumerate(zip(node.outputs, outputs, strict=True))
    ]


@converted.register(Elemwise)
def elementwise(op, node, images):
    """Return the outputs of the same Op in NHWC, if at least one input is a converted image."""
    if not any(variable in images for variable in node.inputs):
        return []
    outputs = op.make_node(*map(images.view, node.inputs)).outputs
    return list(map(images.put, node.outputs, outputs))


@converted.register(CAReduce)
def reduction(op, node, images):
    """Return the result of the same reduction of a converted image, over the axes in their new positions."""
    (image,) = node.inputs
    if image not in images:
        return []
    axes = range(4) if op.axis is None else op.axis
    result = op.clone(axis=tuple(sorted(LAST.index(axis) for axis in axes)))(images.view(image))
    kept = [axis for axis in LAST if axis not in axes]
    return [result.dimshuffle([kept.index(axis) for axis in sorted(kept)])]


@converted.register(Join)
def joined(op, node, images):
    """Return the join of images, some of them converted, along the axis in its new position."""
    axis, pieces = join_pieces(node)
    if axis is None or not any(piece in images for piece in pieces):
        return []
    return [images.put(node.outputs[0], join(LAST.index(axis), *map(images.view, pieces)))]


optdb.register("channels_last", ChannelsLast(), "fast_run", position=POSITION)
