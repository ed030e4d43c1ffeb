"""The gradients of pooling, as symbolic Ops.

    MaxPool2d -> gradient gy -> MaxPool2dGradient(gy, index, height, width) -> gradient for x
    AvgPool2d -> gradient gy -> AvgPool2dGradient(gy, height, width)        -> gradient for x

Height and width are those of x, which need not be kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply

from synk.compile.tables import Width
from synk.kernels.choose import pooling_kernels
from synk.kernels.plain_pool import PlainPool
from synk.kernels.window import Pooling, lengths, ordered
from synk.ops.checks import float_tensor
from synk.ops.image import ImageGradient, known, length, result


class PoolingGradient(ImageGradient):
    """The gradient of an Op that pools images."""

    provider, plain = staticmethod(pooling_kernels), PlainPool(np)
    width = Width(takes=(0,), leads=(0,), gives=(0,))

    def make(self, gy, *others, height, width):
        """Make the node; the shape is inferred as far as it is known."""
        gy, sides = float_tensor("gy", gy, (4,)), (length(height), length(width))
        shape = ordered(self.layout, *lengths(self.layout, gy.type.shape)[:2], *map(known, sides))
        return Apply(self, [gy, *others, *sides], [result(gy.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        return [ordered(self.layout, *lengths(self.layout, shapes[0])[:2], *node.inputs[-2:])]


class MaxPool2dGradient(PoolingGradient):
    """The gradient for x, from (gy, index, height, width)."""

    __props__ = ("pooling",)
    image_inputs = (0, 1)
    differentiated = "max_pool2d"

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def kernel(self, provider, node):
        return provider.max_pool_gradient(self.pooling)

    def make_node(self, gy, index, height, width):
        index = pt.as_tensor_variable(index)
        wanted = index_dtype(self.pooling)
        if index.type.ndim != 4 or index.type.dtype != wanted:
            raise TypeError(f"index must be the second output of MaxPool2d, 4-D {wanted}, not {index.type}")
        return self.make(gy, index, height=height, width=width)

    def connection_pattern(self, node):
        return [[True], [False], [False], [False]]


class AvgPool2dGradient(PoolingGradient):
    """The gradient for x, from (gy, height, width)."""

    __props__ = ("pooling", "count_padding")
    differentiated = "avg_pool2d"

    def __init__(self, pooling: Pooling, count_padding: bool = True):
        self.pooling, self.count_padding = pooling, count_padding

    def kernel(self, provider, node):
        return provider.avg_pool_gradient(self.pooling, self.count_padding)

    def make_node(self, gy, height, width):
        return self.make(gy, height=height, width=width)


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
