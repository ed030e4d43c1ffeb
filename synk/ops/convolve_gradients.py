"""The gradients of a convolution, as symbolic Ops.

    Conv2d -> gradient gy -> Conv2dInputGradient(gy, w, height, width) -> gradient for x
                          -> Conv2dWeightGradient(x, gy, kh, kw)       -> gradient for w

Each takes lengths in place of the array whose gradient it is, so that array need not be kept.
"""

from __future__ import annotations

from math import prod

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.tables import Width, flops_of
from synk.kernels.choose import convolution_kernels
from synk.kernels.im2col import Im2col
from synk.kernels.window import Convolution, lengths, ordered
from synk.ops.checks import float_tensor
from synk.ops.image import ImageGradient, known, length, one_dtype, result


class ConvolutionGradient(ImageGradient):
    """A gradient of `Conv2d`."""

    __props__ = ("convolution",)
    provider, plain = staticmethod(convolution_kernels), Im2col(np)
    differentiated = "conv2d"

    def __init__(self, convolution: Convolution):
        self.convolution = convolution


class Conv2dInputGradient(ConvolutionGradient):
    """The gradient for x, from (gy, w, height, width), the last two of x."""

    width = Width(wants=(0, 1), gives=(0,))

    def kernel(self, provider, node):
        return provider.input_gradient(self.convolution)

    def make_node(self, gy, w, height, width):
        gy, w = float_tensor("gy", gy, (4,)), float_tensor("w", w, (4,))
        sides = length(height), length(width)
        n_images, *_ = lengths(self.layout, gy.type.shape)
        of_weights = w.type.shape[1]
        channels = None if of_weights is None else of_weights * self.convolution.groups
        shape = ordered(self.layout, n_images, channels, *map(known, sides))
        return Apply(self, [gy, w, *sides], [result(one_dtype(gy=gy, w=w), shape)])

    def output_shapes(self, node, shapes):
        (n_images, *_), (_, channels, _, _) = shapes[:2]
        return [ordered(self.layout, n_images, channels * self.convolution.groups, *node.inputs[2:])]


class Conv2dWeightGradient(ConvolutionGradient):
    """The gradient for w, from (x, gy, kh, kw), the last two of w."""

    image_inputs = (0, 1)
    image_outputs = ()
    width = Width(wants=(0, 1))

    def kernel(self, provider, node):
        return provider.weight_gradient(self.convolution)

    def make_node(self, x, gy, kh, kw):
        x, gy = float_tensor("x", x, (4,)), float_tensor("gy", gy, (4,))
        sides = length(kh), length(kw)
        channels, outputs = (lengths(self.layout, image.type.shape)[1] for image in (x, gy))
        self.convolution.check_channels(channels, None, outputs)
        of_weights = None if channels is None else channels // self.convolution.groups
        shape = (outputs, of_weights, *map(known, sides))
        return Apply(self, [x, gy, *sides], [result(one_dtype(x=x, gy=gy), shape)])

    def output_shapes(self, node, shapes):
        channels, outputs = (lengths(self.layout, shape)[1] for shape in shapes[:2])
        return [(outputs, channels // self.convolution.groups, *node.inputs[2:])]


@flops_of.register(Conv2dInputGradient)
def count_input_flops(op):
    """As many as the convolution itself."""
    return lambda inputs, results: 2 * int(inputs[0].size) * prod(inputs[1].shape[1:])


@flops_of.register(Conv2dWeightGradient)
def count_weight_flops(op):
    """As many as the convolution itself."""
    return lambda inputs, results: 2 * int(inputs[1].size) * prod(results[0].shape[1:])
