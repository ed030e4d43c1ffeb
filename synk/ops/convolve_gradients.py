"""The gradients of a convolution, as symbolic Ops.

    Conv2d -> gradient gy -> Conv2dInputGradient(gy, w, height, width) -> gradient for x
                          -> Conv2dWeightGradient(x, gy, kh, kw)       -> gradient for w

Each takes lengths in place of the array whose gradient it is, so that array need not be kept.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply

from synk.compile.tables import array_funcify, flops_of, host_inputs, takes_out
from synk.kernels.choose import convolution_kernels
from synk.kernels.window import Convolution, Window, lengths, ordered
from synk.ops.checks import float_tensor
from synk.ops.image import ImageGradient, known, length, one_dtype, read_lengths, result


class ConvolutionGradient(ImageGradient):
    """What both gradients have in common."""

    __props__ = ("convolution",)
    differentiated = "conv2d"

    def __init__(self, convolution: Convolution):
        self.convolution = convolution


class Conv2dInputGradient(ConvolutionGradient):
    """The gradient for x, from (gy, w, height, width), the last two of x."""

    def make_node(self, gy, w, height, width):
        """Infer the shape as far as it is known."""
        gy, w = float_tensor("gy", gy, (4,)), float_tensor("w", w, (4,))
        sides = length(height), length(width)
        n_images, *_ = lengths(self.layout, gy.type.shape)
        of_weights = w.type.shape[1]
        channels = None if of_weights is None else of_weights * self.convolution.groups
        shape = ordered(self.layout, n_images, channels, *map(known, sides))
        return Apply(self, [gy, w, *sides], [result(one_dtype(gy=gy, w=w), shape)])

    def output_shapes(self, node, shapes):
        """That of x."""
        (n_images, *_), (_, channels, _, _) = shapes[:2]
        return [ordered(self.layout, n_images, channels * self.convolution.groups, *node.inputs[2:])]

    def perform(self, node, inputs, outputs):
        """Add what each place of the windows has had part in, in float64."""
        gy, w, height, width = inputs
        groups, window = self.convolution.groups, self.convolution.window
        gy = to_nchw(gy, self.layout)
        check_gradient(self.convolution, gy.shape, w.shape, height, width)
        gy = gy.reshape(len(gy), groups, gy.shape[1] // groups, *gy.shape[2:])
        weights = w.reshape(groups, len(w) // groups, *w.shape[1:]).astype("float64")
        image = padded(np.zeros((len(gy), groups * w.shape[1], int(height), int(width))), window)
        parts = image.reshape(len(gy), groups, w.shape[1], *image.shape[2:])
        for i, j in product(range(w.shape[2]), range(w.shape[3])):
            part = np.einsum("ngoyx,goc->ngcyx", gy, weights[..., i, j])
            parts[:, :, :, *places(window, i, j, gy.shape[3:])] += part
        (top, _), (left, _) = window.padding
        gx = image[:, :, top : top + int(height), left : left + int(width)]
        gx = gx if self.layout == "NCHW" else gx.transpose(0, 2, 3, 1)
        outputs[0][0] = np.ascontiguousarray(gx, dtype=node.outputs[0].type.dtype)


class Conv2dWeightGradient(ConvolutionGradient):
    """The gradient for w, from (x, gy, kh, kw), the last two of w."""

    image_inputs = (0, 1)
    image_outputs = ()

    def make_node(self, x, gy, kh, kw):
        """Infer the shape as far as it is known."""
        x, gy = float_tensor("x", x, (4,)), float_tensor("gy", gy, (4,))
        sides = length(kh), length(kw)
        channels, outputs = (lengths(self.layout, image.type.shape)[1] for image in (x, gy))
        self.convolution.check_channels(channels, None, outputs)
        of_weights = None if channels is None else channels // self.convolution.groups
        shape = (outputs, of_weights, *map(known, sides))
        return Apply(self, [x, gy, *sides], [result(one_dtype(x=x, gy=gy), shape)])

    def output_shapes(self, node, shapes):
        """That of w."""
        channels, outputs = (lengths(self.layout, shape)[1] for shape in shapes[:2])
        return [(outputs, channels // self.convolution.groups, *node.inputs[2:])]

    def perform(self, node, inputs, outputs):
        """Multiply, for each place, the pixels there with the gradients, in float64."""
        x, gy, kh, kw = inputs
        groups, window = self.convolution.groups, self.convolution.window
        x, gy = to_nchw(x, self.layout), to_nchw(gy, self.layout)
        shape = (gy.shape[1], x.shape[1] // groups, int(kh), int(kw))
        check_gradient(self.convolution, gy.shape, shape, *x.shape[2:])
        gy = gy.reshape(len(gy), groups, gy.shape[1] // groups, *gy.shape[2:])
        image = padded(x.astype("float64"), window)
        image = image.reshape(len(image), groups, shape[1], *image.shape[2:])
        gw = np.zeros((groups, gy.shape[2], *shape[1:]))
        for i, j in product(range(shape[2]), range(shape[3])):
            pixels = image[:, :, :, *places(window, i, j, gy.shape[3:])]
            gw[..., i, j] = np.einsum("ngoyx,ngcyx->goc", gy, pixels)
        outputs[0][0] = gw.reshape(shape).astype(node.outputs[0].type.dtype)


def known_length(window: Window, direction: int, pixels: int | None, places: int | None) -> int | None:
    """Return the number of windows if it is known."""
    return None if pixels is None or places is None else window.output_length(direction, pixels, places)


def to_nchw(image: np.ndarray, layout: str) -> np.ndarray:
    """Return a view with the channels first."""
    return image if layout == "NCHW" else image.transpose(0, 3, 1, 2)


def padded(image: np.ndarray, window: Window) -> np.ndarray:
    """Return a copy of images in NCHW with the window's zeros around them."""
    return np.pad(image, ((0, 0), (0, 0), *window.padding))


def places(window: Window, i: int, j: int, outputs: Any) -> tuple[slice, slice]:
    """Return the pixels of a padded image that are at place (i, j) of the windows."""
    starts = i * window.dilation[0], j * window.dilation[1]
    return tuple(
        slice(start, start + (n - 1) * stride + 1, stride)
        for start, n, stride in zip(starts, outputs, window.stride, strict=True)
    )  # type: ignore[return-value]


def check_gradient(convolution: Convolution, gy: Any, w: Any, height: int, width: int) -> None:
    """Raise ValueError unless a gradient of shape ``gy``, in NCHW, is that of a convolution with ``w``."""
    convolution.check_channels(None, None, w[0])
    sides = convolution.window.output_lengths(int(height), int(width), *w[2:])
    if tuple(gy[1:]) != (w[0], *sides):
        raise ValueError(
            f"gy has shape {tuple(gy)} in NCHW; the convolution gives (images, {w[0]}, *{sides})"
        )


host_inputs.register(ConvolutionGradient)(read_lengths)


@flops_of.register(Conv2dInputGradient)
def count_input_flops(op):
    """As many as the convolution itself."""
    return lambda inputs, results: 2 * int(inputs[0].size) * prod(inputs[1].shape[1:])


@flops_of.register(Conv2dWeightGradient)
def count_weight_flops(op):
    """As many as the convolution itself."""
    return lambda inputs, results: 2 * int(inputs[1].size) * prod(results[0].shape[1:])


@array_funcify.register(Conv2dInputGradient)
def input_gradient_entry(op, node, xp):
    """A kernel for the gradient for x."""
    return takes_out(convolution_kernels(xp, node.outputs[0].type.dtype).input_gradient(op.convolution))


@array_funcify.register(Conv2dWeightGradient)
def weight_gradient_entry(op, node, xp):
    """A kernel for the gradient for w."""
    return takes_out(convolution_kernels(xp, node.outputs[0].type.dtype).weight_gradient(op.convolution))
