"""The gradients of pooling, as symbolic Ops.

    MaxPool2d -> gradient gy -> MaxPool2dGradient(gy, index, height, width) -> gradient for x
    AvgPool2d -> gradient gy -> AvgPool2dGradient(gy, height, width)        -> gradient for x

Height and width are those of x, which need not be kept.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from synk.compile.tables import array_funcify, host_inputs, takes_out
from synk.kernels.choose import pooling_kernels
from synk.kernels.window import Pooling, lengths, ordered
from synk.ops.checks import float_tensor
from synk.ops.image import ImageGradient, known, length, read_lengths, result


class PoolingGradient(ImageGradient):
    """What both gradients have in common."""

    def make(self, gy, *others, height, width):
        """Infer the shape as far as it is known."""
        gy, sides = float_tensor("gy", gy, (4,)), (length(height), length(width))
        shape = ordered(self.layout, *lengths(self.layout, gy.type.shape)[:2], *map(known, sides))
        return Apply(self, [gy, *others, *sides], [result(gy.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        """That of x."""
        return [ordered(self.layout, *lengths(self.layout, shapes[0])[:2], *node.inputs[-2:])]


class MaxPool2dGradient(PoolingGradient):
    """The gradient for x, from (gy, index, height, width)."""

    __props__ = ("pooling",)
    image_inputs = (0, 1)
    differentiated = "max_pool2d"

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def make_node(self, gy, index, height, width):
        """Infer the shape as far as it is known."""
        index = pt.as_tensor_variable(index)
        wanted = index_dtype(self.pooling)
        if index.type.ndim != 4 or index.type.dtype != wanted:
            raise TypeError(f"index must be the second output of MaxPool2d, 4-D {wanted}, not {index.type}")
        return self.make(gy, index, height=height, width=width)

    def connection_pattern(self, node):
        """Only gy has a gradient."""
        return [[True], [False], [False], [False]]

    def perform(self, node, inputs, outputs):
        """Add every gradient at its place."""
        gy, index, height, width = inputs

        def at(i, j):
            return np.where(index == i * self.pooling.size[1] + j, gy, 0)

        outputs[0][0] = spread(self.pooling, gy, int(height), int(width), at)


class AvgPool2dGradient(PoolingGradient):
    """The gradient for x, from (gy, height, width)."""

    __props__ = ("pooling", "count_padding")
    differentiated = "avg_pool2d"

    def __init__(self, pooling: Pooling, count_padding: bool = True):
        self.pooling, self.count_padding = pooling, count_padding

    def make_node(self, gy, height, width):
        """Infer the shape as far as it is known."""
        return self.make(gy, height=height, width=width)

    def perform(self, node, inputs, outputs):
        """Add to every pixel its share of the windows that it is in."""
        gy, height, width = inputs
        if self.count_padding:
            n = self.pooling.size[0] * self.pooling.size[1]
        else:
            (rows, columns), counts = self.pooling.size, lengths(self.pooling.layout, gy.shape)[2:]
            down, right = (
                [
                    len(set(range(o * stride - before, o * stride - before + k)) & set(range(pixels)))
                    for o in range(n)
                ]
                for n, stride, (before, _), k, pixels in zip(
                    counts,
                    self.pooling.window.stride,
                    self.pooling.window.padding,
                    (rows, columns),
                    (int(height), int(width)),
                    strict=True,
                )
            )
            n = np.outer(down, right)
            n = n if self.layout == "NCHW" else n[:, :, None]
        share = gy.astype("float64") / n
        outputs[0][0] = spread(self.pooling, gy, int(height), int(width), lambda i, j: share)


def spread(pooling: Pooling, gy: np.ndarray, height: int, width: int, at: Any) -> np.ndarray:
    """Add, for each place (i, j) of the windows, ``at(i, j)`` to the pixels there, in float64."""
    n_images, channels, *counts = lengths(pooling.layout, gy.shape)
    shape = ordered(pooling.layout, n_images, channels, height, width)
    if pooling.output_shape(shape) != gy.shape:
        raise ValueError(f"gy has shape {gy.shape}; pooling gives {pooling.output_shape(shape)}")
    (top, bottom), (left, right) = pooling.window.padding
    image = np.zeros((n_images, channels, top + height + bottom, left + width + right))
    down, across = pooling.window.stride
    for i, j in product(*map(range, pooling.size)):
        part = at(i, j) if pooling.layout == "NCHW" else at(i, j).transpose(0, 3, 1, 2)
        image[:, :, i : i + down * counts[0] : down, j : j + across * counts[1] : across] += part
    gx = image[:, :, top : top + height, left : left + width]
    gx = gx if pooling.layout == "NCHW" else gx.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(gx, dtype=gy.dtype)


def index_dtype(pooling: Pooling) -> str:
    """Return the dtype that holds all places of a window."""
    return "uint8" if pooling.size[0] * pooling.size[1] <= 256 else "int32"


def known_shape(pooling: Pooling, image: Any) -> tuple[int | None, ...]:
    """Return the shape of the result as far as it is known; None is unknown."""
    n_images, channels, *sides = lengths(pooling.layout, image)
    counts = [
        None if pixels is None else pooling.window.output_length(direction, pixels, pooling.size[direction])
        for direction, pixels in enumerate(sides)
    ]
    return ordered(pooling.layout, n_images, channels, *counts)


host_inputs.register(PoolingGradient)(read_lengths)


@array_funcify.register(MaxPool2dGradient)
def max_pool_gradient_entry(op, node, xp):
    """A kernel that sends gradients to where the maxima were."""
    return takes_out(pooling_kernels(xp, node.outputs[0].type.dtype).max_pool_gradient(op.pooling))


@array_funcify.register(AvgPool2dGradient)
def avg_pool_gradient_entry(op, node, xp):
    """A kernel that shares gradients among the pixels of windows."""
    kernels = pooling_kernels(xp, node.outputs[0].type.dtype)
    return takes_out(kernels.avg_pool_gradient(op.pooling, op.count_padding))
