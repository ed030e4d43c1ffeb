"""The rewrite that keeps images with their channels last, from the first Op that wants them so to the last.

Users write (row, channel, height, width); convolutions, and all that stands between them, are fastest with
the channels of a pixel side by side. One walk decides for the whole graph, so nothing is moved in between:

    image in NCHW -> copied once -> image Ops and what joins them, in NHWC -> views in NCHW

Every image Op computes in NHWC, and so does every Elemwise, reduction or join that reads an image which is
there already. Whatever else reads such an image gets a view of it, which costs nothing.
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

POSITION = 48.7  # what users wrote is simplified and has no shapes to infer any more; nothing is fused yet

LAST = (0, 2, 3, 1)  # axes of NCHW in the order of NHWC
FIRST = (0, 3, 1, 2)  # and back


class ChannelsLast(GraphRewriter):
    """Rewrite a graph so that its images have their channels last."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Rewrite ``fgraph``, unless it has no image Op."""
        order = fgraph.toposort()
        if not any(isinstance(node.op, ImageOp) for node in order):
            return
        images = Images()
        for node in order:
            for old, new in zip(node.outputs, converted(node.op, node, images), strict=False):
                copy_stack_trace(old, new)
                images.replaced[old] = new
        # The last first: then nothing reads the others any more, but what stays as it is.
        for old, new in reversed(images.replaced.items()):
            if fgraph.clients.get(old):
                fgraph.replace(old, new, reason="channels_last", import_missing=True)


class Images:
    """Variables that have a counterpart with the channels last."""

    def __init__(self) -> None:
        # For results of converted nodes, what stands for them in the rest of the graph.
        self.replaced: dict[Variable, Variable] = {}
        self._inside: dict[Variable, Variable] = {}

    def __contains__(self, variable: Variable) -> bool:
        return variable in self._inside

    def put(self, old: Variable, new: Variable) -> Variable:
        """Note that ``new`` is the image ``old`` with its channels last; return a view like ``old``."""
        self._inside[old] = new
        return new.dimshuffle(FIRST)

    def view(self, variable: Variable) -> Variable:
        """Return a variable of four axes with the second one last, wherever its elements lie."""
        if variable in self._inside:
            return self._inside[variable]
        if isinstance(variable, Constant):
            return constant(np.ascontiguousarray(np.transpose(variable.data, LAST)))
        if variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
            (source,), old = variable.owner.inputs, variable.owner.op.new_order
            return source.dimshuffle([old[axis] for axis in LAST])
        return variable.dimshuffle(LAST)

    def image(self, variable: Variable) -> Variable:
        """Return an image with its channels last, side by side in memory."""
        if variable not in self._inside:
            spread = self._spread(variable)
            self._inside[variable] = CpuContiguous()(self.view(variable)) if spread is None else spread
        return self._inside[variable]

    def _spread(self, variable: Variable) -> Variable | None:
        """Return the image made in place, if it is but fewer numbers spread over one."""
        if variable.owner is None or not isinstance(variable.owner.op, Alloc):
            return None
        value, *shape = variable.owner.inputs
        if value.type.ndim not in (0, 4):
            return None
        return alloc(self.view(value) if value.type.ndim else value, *[shape[axis] for axis in LAST])


@singledispatch
def converted(op: Any, node: Apply, images: Images) -> list[Variable]:
    """Return variables in place of the outputs of ``node``, with channels last; none, to leave it."""
    return []


@converted.register(ImageOp)
def image_op(op, node, images):
    """Return the same Op in the other layout."""
    matrix = node.inputs[op.image_inputs[0]].type.ndim == 2  # of which there is one layout
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
    """Return the same Op on the same elements, if one of its images is there already."""
    if not any(variable in images for variable in node.inputs):
        return []
    outputs = op.make_node(*map(images.view, node.inputs)).outputs
    return list(map(images.put, node.outputs, outputs))


@converted.register(CAReduce)
def reduction(op, node, images):
    """A reduction over the same axes under their new numbers."""
    (image,) = node.inputs
    if image not in images:
        return []
    axes = range(4) if op.axis is None else op.axis
    result = op.clone(axis=tuple(sorted(LAST.index(axis) for axis in axes)))(images.view(image))
    kept = [axis for axis in LAST if axis not in axes]
    return [result.dimshuffle([kept.index(axis) for axis in sorted(kept)])]


@converted.register(Join)
def joined(op, node, images):
    """A join of images along the same axis, such as that of channels."""
    axis, pieces = join_pieces(node)
    if axis is None or not any(piece in images for piece in pieces):
        return []
    return [images.put(node.outputs[0], join(LAST.index(axis), *map(images.view, pieces)))]


optdb.register("channels_last", ChannelsLast(), "fast_run", position=POSITION)
