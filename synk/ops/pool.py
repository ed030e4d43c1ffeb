"""Pooling of a batch of images, as symbolic Ops, and their gradients.

    max_pool2d -> MaxPool2d    avg_pool2d -> AvgPool2d    global_avg_pool2d -> GlobalAvgPool2d

    MaxPool2d -> gradient gy -> MaxPool2dGradient(gy, index, height, width) -> gradient for x
    AvgPool2d -> gradient gy -> AvgPool2dGradient(gy, height, width)        -> gradient for x

    MaxPool2dGradient -> cotangent for x -> MaxPool2dChosen(cotangent, index) -> gradient for gy
    AvgPool2dGradient -> cotangent for x -> AvgPool2d(cotangent)              -> gradient for gy

Height and width are those of x; x itself need not be kept for the gradient. All gradients are linear, so that
there are derivatives of any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable

from synk.compile.tables import WIDE, Width
from synk.ops.checks import float_tensor, named
from synk.ops.image import (
    ImageGradient,
    ImageOp,
    LayoutOp,
    known,
    known_counts,
    known_lengths,
    length,
    padding_pairs,
    pair,
    result,
    spatial_lengths,
)
from synk.ops.kernels.choose import pooling_kernels
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.window import Pooling, Window, check_layout, lengths, ordered


class PoolingOp(ImageOp):
    """An Op that pools images."""

    provider, plain = staticmethod(pooling_kernels), PlainPool(np)
    width = Width(takes=(0,), requires=(0,), gives=(0,))


class MaxPool2d(PoolingOp):
    """The maximum of each window of x, and its place: (y, index).

    The index is the place of the first maximum, counted row by row in the window; its dtype is uint8 if that
    suffices, else int32. NaN counts as larger than any number.
    """

    __props__ = ("pooling",)
    image_outputs = (0, 1)

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def make_node(self, x):
        x = float_tensor("x", x, (4,))
        shape = known_shape(self.pooling, x.type.shape)
        dtypes = x.type.dtype, index_dtype(self.pooling)
        return Apply(self, [x], [result(dtype, shape) for dtype in dtypes])

    def output_shapes(self, node, shapes):
        return [pooled_shape(self.pooling, shapes[0])] * 2

    def kernel(self, provider, node):
        return provider.max_pool(self.pooling, node.outputs[1].type.dtype)

    def connection_pattern(self, node):
        return [[True, False]]  # the index has no gradient

    def pullback(self, inputs, outputs, cotangents):
        """Send each gradient to where the maximum was."""
        if isinstance(cotangents[0].type, DisconnectedType):
            return [disconnected_type()]
        gradient = MaxPool2dGradient(self.pooling)
        return [gradient(cotangents[0], outputs[1], *spatial_lengths(self.layout, inputs[0]))]


class AvgPool2d(PoolingOp):
    """The mean of each window of x; padding counts as zeros if ``count_padding``, else not at all."""

    __props__ = ("pooling", "count_padding")

    def __init__(self, pooling: Pooling, count_padding: bool = True):
        self.pooling, self.count_padding = pooling, count_padding

    def make_node(self, x):
        x = float_tensor("x", x, (4,))
        return Apply(self, [x], [result(x.type.dtype, known_shape(self.pooling, x.type.shape))])

    def output_shapes(self, node, shapes):
        return [pooled_shape(self.pooling, shapes[0])]

    def kernel(self, provider, node):
        return provider.avg_pool(self.pooling, self.count_padding)

    def pullback(self, inputs, outputs, cotangents):
        """Share each gradient among the pixels of the window."""
        gradient = AvgPool2dGradient(self.pooling, self.count_padding)
        return [gradient(cotangents[0], *spatial_lengths(self.layout, inputs[0]))]


class GlobalAvgPool2d(PoolingOp, LayoutOp):
    """The mean of each channel of each image: (images, channels)."""

    __props__ = ("image_layout",)
    image_outputs = ()

    def __init__(self, layout: str = "NCHW"):
        check_layout(layout)
        self.image_layout = layout

    def make_node(self, x):
        x = float_tensor("x", x, (4,))
        return Apply(self, [x], [result(x.type.dtype, lengths(self.layout, x.type.shape)[:2])])

    def output_shapes(self, node, shapes):
        return [lengths(self.layout, shapes[0])[:2]]

    def kernel(self, provider, node):
        return provider.global_avg_pool(self.layout)

    def pullback(self, inputs, outputs, cotangents):
        """Share each gradient among all pixels."""
        (x,), (gy,) = inputs, cotangents
        _, _, height, width = lengths(self.layout, x.shape)
        share = gy / pt.cast(height * width, gy.type.dtype)
        order = ordered(self.layout, 0, 1, "x", "x")
        # PyTensor drops the alloc where an elementwise Op reads it.
        return [pt.alloc(share.dimshuffle(order), *known_lengths(x))]


class PoolingGradient(PoolingOp, ImageGradient):
    """The gradient of an Op that pools images."""

    def make(self, gy, *others, height, width):
        """Make the node; ``others`` are the inputs between gy and x's two lengths."""
        gy, sides = float_tensor("gy", gy, (4,)), (length(height), length(width))
        shape = ordered(self.layout, *lengths(self.layout, gy.type.shape)[:2], *map(known, sides))
        return Apply(self, [gy, *others, *sides], [result(gy.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        return [ordered(self.layout, *lengths(self.layout, shapes[0])[:2], *node.inputs[-2:])]


class MaxPool2dGradient(PoolingGradient):
    """The gradient of `MaxPool2d` for x, from gy, the index, and the height and width of x."""

    __props__ = ("pooling",)
    image_inputs = (0, 1)

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def kernel(self, provider, node):
        return provider.max_pool_gradient(self.pooling)

    def make_node(self, gy, index, height, width):
        return self.make(gy, checked_index(self.pooling, index), height=height, width=width)

    def connection_pattern(self, node):
        return [[True], [False], [False], [False]]

    def pullback(self, inputs, outputs, cotangents):
        """Take each gradient from where the maximum was."""
        chosen = MaxPool2dChosen(self.pooling)(cotangents[0], inputs[1])
        return [chosen, *(disconnected_type() for _ in range(3))]


class MaxPool2dChosen(PoolingOp):
    """The pixel of each window of x at the place that the index of a `MaxPool2d` holds."""

    __props__ = ("pooling",)
    image_inputs = (0, 1)
    width = WIDE

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def make_node(self, x, index):
        x = float_tensor("x", x, (4,))
        shape = known_shape(self.pooling, x.type.shape)
        return Apply(self, [x, checked_index(self.pooling, index)], [result(x.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        return [pooled_shape(self.pooling, shapes[0])]

    def kernel(self, provider, node):
        return provider.max_pool_chosen(self.pooling)

    def connection_pattern(self, node):
        return [[True], [False]]

    def pullback(self, inputs, outputs, cotangents):
        """Send each gradient to the pixel that was taken."""
        sides = spatial_lengths(self.layout, inputs[0])
        return [MaxPool2dGradient(self.pooling)(cotangents[0], inputs[1], *sides), disconnected_type()]


class AvgPool2dGradient(PoolingGradient):
    """The gradient of `AvgPool2d` for x, from gy, and the height and width of x."""

    __props__ = ("pooling", "count_padding")

    def __init__(self, pooling: Pooling, count_padding: bool = True):
        self.pooling, self.count_padding = pooling, count_padding

    def kernel(self, provider, node):
        return provider.avg_pool_gradient(self.pooling, self.count_padding)

    def make_node(self, gy, height, width):
        return self.make(gy, height=height, width=width)

    def pullback(self, inputs, outputs, cotangents):
        """Pool the cotangent."""
        pooled = AvgPool2d(self.pooling, self.count_padding)(cotangents[0])
        return [pooled, disconnected_type(), disconnected_type()]


def checked_index(pooling: Pooling, index: Any) -> Any:
    """Return an index as a variable; TypeError unless it has the type of a `MaxPool2d`'s."""
    index, wanted = pt.as_tensor_variable(index), index_dtype(pooling)
    if index.type.ndim != 4 or index.type.dtype != wanted:
        raise TypeError(f"index must be the second output of MaxPool2d, 4-D {wanted}, not {index.type}")
    return index


def index_dtype(pooling: Pooling) -> str:
    """Return the dtype of the index of a maximum: the smaller one if it can count all places of a window."""
    return "uint8" if pooling.size[0] * pooling.size[1] <= 256 else "int32"


@named
def max_pool2d(x: Any, size: int | tuple[int, int], *, stride: Any = None, padding: Any = 0) -> Variable:
    """Return the maximum of each window.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    size : int or (int, int)
        Pixels of a window: height, width.
    stride : int or (int, int), optional
        Pixels from one window to the next; default ``size``.
    padding : int, (int, int) or ((top, bottom), (left, right))
        Pixels around the image that are less than any number; fewer than ``size``.

    Returns
    -------
    tensor of x's dtype, shape (images, channels, height', width')
        Where ``height' = (height + padding - size) // stride + 1``. The gradient goes to the first maximum.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no window fits.

    See Also
    --------
    synk.extensions.layers.MaxPool : the layer.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.max_pool2d(x, 2))
    >>> f(np.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    return MaxPool2d(pooling_of(size, stride, padding))(x)[0]


@named
def avg_pool2d(
    x: Any, size: int | tuple[int, int], *, stride: Any = None, padding: Any = 0, count_padding: bool = True
) -> Variable:
    """Return the mean of each window.

    Parameters
    ----------
    x, size, stride, padding
        As in `max_pool2d`, but for padding with zeros.
    count_padding : bool
        Divide by the pixels of a window; otherwise, by those of them that are in the image.

    Returns
    -------
    tensor of x's dtype, shape (images, channels, height', width')

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no window fits.

    See Also
    --------
    synk.extensions.layers.AvgPool : the layer.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.avg_pool2d(x, 2))
    >>> f(np.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    return AvgPool2d(pooling_of(size, stride, padding), bool(count_padding))(x)


@named
def global_avg_pool2d(x: Any) -> Variable:
    """Return the mean of each channel of each image.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)

    Returns
    -------
    tensor of x's dtype, shape (images, channels)

    See Also
    --------
    synk.extensions.layers.GlobalAvgPool : the layer.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.global_avg_pool2d(x))
    >>> f(np.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[7.5]]
    """
    return GlobalAvgPool2d()(x)


def pooling_of(size: Any, stride: Any, padding: Any) -> Pooling:
    """Return the geometry for the arguments of `max_pool2d` or `avg_pool2d`."""
    places = pair("size", size)
    steps = places if stride is None else pair("stride", stride)
    return Pooling(Window(places, steps, padding_pairs(padding)))


def known_shape(pooling: Pooling, image: Any) -> tuple[int | None, ...]:
    """Return the shape of the result for images of shape ``image``; None is a length that is not known."""
    n_images, channels, *sides = lengths(pooling.layout, image)
    return ordered(pooling.layout, n_images, channels, *known_counts(pooling.window, sides, pooling.size))


def pooled_shape(pooling: Pooling, shape: Any) -> tuple[Any, ...]:
    """Return the shape of the result, as expressions of the symbolic lengths in ``shape``."""
    n_images, channels, height, width = lengths(pooling.layout, shape)
    count, (rows, columns) = pooling.window.count, pooling.size
    return ordered(pooling.layout, n_images, channels, count(0, height, rows), count(1, width, columns))
