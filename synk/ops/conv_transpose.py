"""Transposed convolution of a batch of images, which makes them larger: the convolution's input gradient.

    conv_transpose2d(x, w, bias) -> ConvTranspose2d -> gradient gy
        Conv2d(gy, w)                       -> gradient for x
        Conv2dWeightGradient(gy, x, kh, kw) -> gradient for w

It is an Op of its own, beside `Conv2dInputGradient`, because its result's size follows from its inputs and
its properties: a graph knows it where it knows the size of x.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise

from synk.compile.tables import Width, flops_of
from synk.ops.checks import float_tensor, named
from synk.ops.convolve import Conv2d, ConvolutionOp, common_outputs, weight_gradient
from synk.ops.image import one_dtype, padding_pairs, pair, result
from synk.ops.kernels.window import DIRECTIONS, Convolution, Pair, Window, lengths, ordered


class ConvTranspose2d(ConvolutionOp):
    """The Op of ``y = conv_transpose(x, w)``.

    Its inputs are the images x, whose axes are in the order of the convolution's layout, and w, of shape
    (channels of x, output channels / groups, kh, kw). ``convolution`` is the one that takes y back to the
    size of x; for strides above 1 it does so from several sizes, and ``output_padding`` says how many pixels
    y has beyond the fewest, in height and width.
    """

    __props__ = ("convolution", "output_padding")
    width = Width(rounds=(0, 1), gives=(0,))

    def __init__(self, convolution: Convolution, output_padding: Pair = (0, 0)):
        stride = convolution.window.stride
        if not all(0 <= extra < step for extra, step in zip(output_padding, stride, strict=True)):
            raise ValueError(
                f"output_padding={output_padding} must be 0 or more and less than stride={stride}; "
                "take less padding at the end instead: padding=((top, bottom), (left, right))"
            )
        self.convolution, self.output_padding = convolution, output_padding

    def make_node(self, x, w):
        x, w = float_tensor("x", x, (4,)), float_tensor("w", w, (4,))
        n_images, *_ = lengths(self.layout, x.type.shape)
        sides = self.checked(x.type.shape, w.type.shape)
        outputs = None if w.type.shape[1] is None else w.type.shape[1] * self.convolution.groups
        shape = ordered(self.layout, n_images, outputs, *sides)
        return Apply(self, [x, w], [result(one_dtype(x=x, w=w), shape)])

    def output_shapes(self, node, shapes):
        n_images, _, *sides = lengths(self.layout, shapes[0])
        _, outputs, *places = shapes[1]
        grown = [self.grown(k, *side) for k, side in enumerate(zip(sides, places, strict=True))]
        return [ordered(self.layout, n_images, outputs * self.convolution.groups, *grown)]

    def kernel(self, provider, node):
        spread = provider.input_gradient(self.convolution)

        def run(x, w, out=None):
            return spread(x, w, *self.checked(x.shape, w.shape), out=out)

        return run

    def pullback(self, inputs, outputs, cotangents):
        """Convolve the cotangent for x; it takes the place of the images in the gradient for w."""
        (x, w), (gy,) = inputs, cotangents
        return [Conv2d(self.convolution)(gy, w), weight_gradient(self.convolution, gy, x, w)]

    def grown(self, direction: int, length: Any, places: Any) -> Any:
        """Return the pixels of the result in one direction, from those of x; both may be symbolic."""
        return self.convolution.window.covered(direction, length, places) + self.output_padding[direction]

    def checked(self, image: Any, weights: Any) -> list[int | None]:
        """Return height and width of the result for these shapes, None where it is not known.

        Raise ValueError if the shapes do not go together, or the result would have no pixels.
        """
        _, channels, *sides = lengths(self.layout, tuple(image))
        of_weights, _, *places = weights
        groups, padding = self.convolution.groups, self.convolution.window.padding
        if None not in (channels, of_weights) and channels != of_weights:
            raise ValueError(
                f"conv_transpose2d: the image has {channels} channels, but w of shape {tuple(weights)} is "
                f"for {of_weights}; give w the shape (channels, output channels / groups, kh, kw)"
            )
        for count in (channels, of_weights):
            if count is not None and count % groups:
                raise ValueError(
                    f"conv_transpose2d: groups={groups} does not divide {count} channels; choose a divisor"
                )
        grown: list[int | None] = []
        for direction, (length, place) in enumerate(zip(sides, places, strict=True)):
            side = None if length is None or place is None else int(self.grown(direction, length, place))
            if side is not None and min(side, length, place) < 1:
                raise ValueError(
                    f"conv_transpose2d: a {DIRECTIONS[direction]} of {length} pixels, windows of {place} "
                    f"places and padding {padding[direction]} leave {side} pixels; take larger images or "
                    "less padding"
                )
            grown.append(side)
        return grown


@named
def conv_transpose2d(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: int | tuple[int, int] = 1,
    padding: Any = 0,
    output_padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Variable:
    """Spread each pixel over a window of weights, and sum: with a stride, images become larger.

    It is the gradient of `conv2d` for its images, by the same arguments:
    ``y[n, o, i * stride + p * dilation - padding, ...] = bias[o] + sum(w[c, o, p, q] * x[n, c, i, j])``

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    w : tensor of x's dtype, shape (channels, output channels / groups, kh, kw)
        As `conv2d` has it on the way back, so that one w serves both.
    bias : tensor of x's dtype, shape (output channels,), optional
    stride : int or (int, int)
        Pixels of the result from one window to the next.
    padding : int, (int, int) or ((top, bottom), (left, right))
        Pixels taken away around the result.
    output_padding : int or (int, int)
        Pixels added to the result at the bottom and on the right, less than ``stride``: `conv2d` takes images
        of several sizes to the size of x, and this chooses among them.
    dilation : int or (int, int)
        Pixels of the result from one place of the window to the next.
    groups : int
        Parts of the channels that are convolved apart; must divide both numbers of channels.

    Returns
    -------
    tensor of x's dtype, shape (images, output channels, height', width')
        Where ``height' = (height - 1) * stride - padding + dilation * (kh - 1) + output_padding + 1``, and
        ``padding`` is that of both ends together.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these; a number of channels does not fit, or no pixels would be left.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.conv_transpose2d(x, [[[[1.0, 2.0], [3.0, 4.0]]]], stride=2))
    >>> f([[[[1.0, 10.0]]]]).tolist()
    [[[[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]]]]
    """
    x, w = float_tensor("x", x, (4,)), float_tensor("w", w, (4,))
    if isinstance(padding, str):
        raise ValueError(
            f"padding={padding!r} must be numbers; kh // 2 keeps the size of odd kh and stride 1"
        )
    window = Window(None, pair("stride", stride), padding_pairs(padding), pair("dilation", dilation))
    y = ConvTranspose2d(Convolution(window, groups), pair("output_padding", output_padding))(x, w)
    if bias is None:
        return y
    return with_bias(y, float_tensor("bias", bias, (1,), y.type.dtype))


def with_bias(y: Any, bias: Any) -> Any:
    """Return ``y + bias``, one number per channel; ValueError, here or when it runs, for another length."""
    of_images, of_bias = y.type.shape[1], bias.type.shape[0]
    common_outputs(of_images, of_bias)
    if None in (of_images, of_bias):
        # A bias of one number would broadcast.
        check = CheckAndRaise(
            ValueError, "conv_transpose2d: give bias one element per output channel, groups * w.shape[1]"
        )
        bias = check(bias, pt.eq(bias.shape[0], y.shape[1]))
    return y + bias.dimshuffle("x", 0, "x", "x")


@flops_of.register(ConvTranspose2d)
def count_flops(op):
    """Return a function that counts operations: each pixel of x takes one product a weight of its channel."""
    return lambda inputs, results: 2 * int(inputs[0].size) * prod(inputs[1].shape[1:])
