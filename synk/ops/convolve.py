"""Convolution of a batch of images, as a symbolic Op, and its gradients.

    conv2d(x, w, bias) -> Conv2d -> gradient gy -> Conv2dInputGradient(gy, w, height, width) -> gradient for x
                                                -> Conv2dWeightGradient(x, gy, kh, kw)       -> gradient for w

As in other libraries of networks, "convolution" means a correlation: the weights are not reversed. The
gradient for an array takes lengths of that array instead of the array, which need not be kept for it.

Both gradients are linear in both of their arrays, so that theirs are made of the same three Ops again, and
there are derivatives of any order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from synk.compile.tables import Width, flops_of
from synk.ops.checks import float_tensor, named
from synk.ops.image import (
    ImageGradient,
    ImageOp,
    known,
    known_counts,
    length,
    one_dtype,
    padding_pairs,
    pair,
    result,
    spatial_lengths,
)
from synk.ops.kernels.choose import convolution_kernels
from synk.ops.kernels.im2col import Im2col
from synk.ops.kernels.window import AXES, Convolution, Window, lengths, ordered


class ConvolutionOp(ImageOp):
    """A convolution, or a gradient of one."""

    provider, plain = staticmethod(convolution_kernels), Im2col(np)


class Conv2d(ConvolutionOp):
    """The Op of ``y = conv(x, w) + bias``, then ``max(0, y)`` if ``relu``.

    Its inputs are the images x, whose axes are in the order of ``layout``; w, of shape (output channels,
    input channels / groups, kh, kw); and optionally bias, of shape (output channels,).
    """

    __props__ = ("convolution", "relu")
    width = Width(rounds=(0, 1, 2), gives=(0,))

    def __init__(self, convolution: Convolution, relu: bool = False):
        self.convolution, self.relu = convolution, relu

    def kernel(self, provider, node):
        return provider.forward(self.convolution, self.relu, len(node.inputs) == 3)

    def make_node(self, x, w, bias=None):
        x, w = float_tensor("x", x, (4,)), float_tensor("w", w, (4,))
        inputs = [x, w]
        if bias is not None:
            bias = float_tensor("bias", bias, (1,))
            inputs.append(bias)
        dtype = one_dtype(x=x, w=w, bias=bias)
        n_images, channels, height, width = lengths(self.layout, x.type.shape)
        outputs, of_weights, kh, kw = w.type.shape
        self.convolution.check_channels(channels, of_weights, outputs)
        if bias is not None:
            outputs = common_outputs(outputs, bias.type.shape[0])
        sides = known_counts(self.convolution.window, (height, width), (kh, kw))
        return Apply(self, inputs, [result(dtype, ordered(self.layout, n_images, outputs, *sides))])

    def output_shapes(self, node, shapes):
        n_images, _, height, width = lengths(self.layout, shapes[0])
        outputs, _, kh, kw = shapes[1]
        count = self.convolution.window.count
        return [ordered(self.layout, n_images, outputs, count(0, height, kh), count(1, width, kw))]

    def pullback(self, inputs, outputs, cotangents):
        """Compute each input's gradient by an Op of its own: the one for x reads no x, the one for w no w."""
        (x, w, *bias), (gy,) = inputs, cotangents
        if self.relu:
            gy = pt.switch(outputs[0] > 0, gy, np.zeros((), gy.type.dtype))
        gx = Conv2dInputGradient(self.convolution)(gy, w, *spatial_lengths(self.layout, x))
        gw = weight_gradient(self.convolution, x, gy, w)
        others = [axis for axis in range(4) if axis != AXES[self.layout][0]]
        return [gx, gw, *[gy.sum(axis=others) for _ in bias]]


class ConvolutionGradient(ConvolutionOp, ImageGradient):
    """A gradient of `Conv2d`."""

    __props__ = ("convolution",)

    def __init__(self, convolution: Convolution):
        self.convolution = convolution


class Conv2dInputGradient(ConvolutionGradient):
    """The gradient for x, from gy, w, and the height and width of x."""

    width = Width(rounds=(0, 1), gives=(0,))

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

    def pullback(self, inputs, outputs, cotangents):
        """Convolve for gy; for w, take the gradient of a convolution of the cotangent to gy."""
        (gy, w, *_), (gx,) = inputs, cotangents
        for_gy, for_w = Conv2d(self.convolution)(gx, w), weight_gradient(self.convolution, gx, gy, w)
        return [for_gy, for_w, disconnected_type(), disconnected_type()]


class Conv2dWeightGradient(ConvolutionGradient):
    """The gradient for w, from x, gy, and the last two lengths of w, kh and kw."""

    image_inputs = (0, 1)
    image_outputs = ()
    width = Width(rounds=(0, 1))

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

    def pullback(self, inputs, outputs, cotangents):
        """Take the gradient of a convolution with the cotangent for x; convolve x with it for gy."""
        (x, gy, *_), (gw,) = inputs, cotangents
        for_x = Conv2dInputGradient(self.convolution)(gy, gw, *spatial_lengths(self.layout, x))
        return [for_x, Conv2d(self.convolution)(x, gw), disconnected_type(), disconnected_type()]


def weight_gradient(convolution: Convolution, x: Any, gy: Any, w: Any) -> Any:
    """Return the gradient for ``w`` of a convolution of x to gy, of as much of w's shape as is known."""
    gradient = Conv2dWeightGradient(convolution)(x, gy, *spatial_lengths("NCHW", w))
    known_lengths = zip(w.type.shape, gradient.type.shape, strict=True)
    # The type of w may know a length that that of x does not; a gradient of known shape needs no copy.
    lacks = any(found is None and wanted is not None for wanted, found in known_lengths)
    return pt.specify_shape(gradient, w.type.shape) if lacks else gradient


def common_outputs(of_weights: int | None, of_bias: int | None) -> int | None:
    """Return the number of output channels, None if not known; ValueError if weights and bias disagree."""
    if None not in (of_weights, of_bias) and of_weights != of_bias:
        raise ValueError(f"bias has {of_bias} elements; give it one per output channel of w, {of_weights}")
    return of_bias if of_weights is None else of_weights


@named
def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Any = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Variable:
    """Convolve images with weights, channel by channel, and sum.

    ``y[n, o, i, j] = bias[o] + sum(w[o, c, p, q] * x[n, c, i * stride + p * dilation - padding, ...])``

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    w : tensor of x's dtype, shape (output channels, channels / groups, kh, kw)
    bias : tensor of x's dtype, shape (output channels,), optional
    stride : int or (int, int)
        Pixels from one window to the next.
    padding : int, (int, int), ((top, bottom), (left, right)), "valid" or "same"
        Zeros around the image. "valid": none. "same": as many as keep height and width, of an odd number one
        more after than before; for stride 1 and a w whose shape is known.
    dilation : int or (int, int)
        Pixels from one place of the window to the next.
    groups : int
        Parts of the channels that are convolved apart; must divide both numbers of channels.

    Returns
    -------
    tensor of x's dtype, shape (images, output channels, height', width')
        Where ``height' = (height + padding - dilation * (kh - 1) - 1) // stride + 1``.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these; a number of channels or a window does not fit.

    See Also
    --------
    synk.extensions.layers.Conv : the layer.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.conv2d(x, pt.ones((1, 1, 3, 3))))
    >>> f(np.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[45.0, 54.0], [81.0, 90.0]]]]
    """
    x, w = float_tensor("x", x, (4,)), float_tensor("w", w, (4,))
    steps, spread = pair("stride", stride), pair("dilation", dilation)
    if isinstance(padding, str):
        padding = named_padding(padding, w.type.shape[2:], steps, spread)
    window = Window(None, steps, padding_pairs(padding), spread)
    return Conv2d(Convolution(window, groups))(x, w, *([] if bias is None else [bias]))


def named_padding(name: str, size: Any, stride: Any, dilation: Any) -> Any:
    """Return the padding called "valid" or "same"; ValueError for another name, or if "same" cannot hold."""
    if name == "valid":
        return 0
    if name != "same":
        raise ValueError(f'padding={name!r} is unknown; give numbers, "valid" or "same"')
    if stride != (1, 1):
        raise ValueError(f'padding="same" with stride={stride} cannot keep the size; give numbers')
    if None in size:
        raise ValueError(
            f'padding="same" needs the size of w, known here: {size}; use pt.specify_shape(w, ...)'
        )
    totals = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)


@flops_of.register(Conv2d)
def count_flops(op):
    """Return a function that counts operations: each result sums one product a weight of its channel."""
    return lambda inputs, results: 2 * int(results[0].size) * prod(inputs[1].shape[1:])


@flops_of.register(Conv2dInputGradient)
def count_input_flops(op):
    """Return a function that counts operations: as many as those of the convolution."""
    return lambda inputs, results: 2 * int(inputs[0].size) * prod(inputs[1].shape[1:])


@flops_of.register(Conv2dWeightGradient)
def count_weight_flops(op):
    """Return a function that counts operations: as many as those of the convolution."""
    return lambda inputs, results: 2 * int(inputs[1].size) * prod(results[0].shape[1:])
