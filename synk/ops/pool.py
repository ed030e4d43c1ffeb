"""Pooling of a batch of images, as symbolic Ops.

max_pool2d -> MaxPool2d    avg_pool2d -> AvgPool2d    global_avg_pool2d -> GlobalAvgPool2d
              -> kernels of `choose`; the gradients are in `pool_gradients`
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.lib.stride_tricks import sliding_window_view
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable

from synk.compile.tables import array_funcify, takes_out
from synk.kernels.choose import pooling_kernels
from synk.kernels.window import AXES, Pooling, Window, check_layout, lengths, ordered
from synk.ops.checks import float_tensor
from synk.ops.image import ImageOp, known_lengths, padding_pairs, pair, result, spatial_lengths
from synk.ops.pool_gradients import AvgPool2dGradient, MaxPool2dGradient, index_dtype, known_shape


class MaxPool2d(ImageOp):
    """The maximum of each window of x, and its place: (y, index).

    The index is the place of the first maximum, counted row by row in the window; its dtype is uint8 if that
    suffices, else int32. NaN is more than any number.
    """

    __props__ = ("pooling",)
    image_outputs = (0, 1)

    def __init__(self, pooling: Pooling):
        self.pooling = pooling

    def make_node(self, x):
        """Infer the shape as far as it is known."""
        x = float_tensor("x", x, (4,))
        shape = known_shape(self.pooling, x.type.shape)
        dtypes = x.type.dtype, index_dtype(self.pooling)
        return Apply(self, [x], [result(dtype, shape) for dtype in dtypes])

    def output_shapes(self, node, shapes):
        """Count the windows that fit."""
        return [pooled_shape(self.pooling, shapes[0])] * 2

    def perform(self, node, inputs, outputs):
        """Look at every window."""
        windows, inside, back = all_windows(self.pooling, inputs[0], -np.inf)
        # A place in the padding is never the first maximum, even of a window of -inf.
        best = (inside & (windows == windows.max(axis=-1, keepdims=True))).argmax(axis=-1)
        lost = np.isnan(windows)
        index = np.where(lost.any(axis=-1), lost.argmax(axis=-1), best)
        y = np.take_along_axis(windows, index[..., None], axis=-1)[..., 0]
        for cell, values, output in zip(outputs, (y, index), node.outputs, strict=True):
            cell[0] = np.ascontiguousarray(back(values), dtype=output.type.dtype)

    def connection_pattern(self, node):
        """Places have no gradient."""
        return [[True, False]]

    def pullback(self, inputs, outputs, cotangents):
        """Send each gradient to where the maximum was."""
        if isinstance(cotangents[0].type, DisconnectedType):
            return [disconnected_type()]
        gradient = MaxPool2dGradient(self.pooling)
        return [gradient(cotangents[0], outputs[1], *spatial_lengths(self.layout, inputs[0]))]


class AvgPool2d(ImageOp):
    """The mean of each window of x; padding counts as zeros if ``count_padding``, else not at all."""

    __props__ = ("pooling", "count_padding")

    def __init__(self, pooling: Pooling, count_padding: bool = True):
        self.pooling, self.count_padding = pooling, count_padding

    def make_node(self, x):
        """Infer the shape as far as it is known."""
        x = float_tensor("x", x, (4,))
        return Apply(self, [x], [result(x.type.dtype, known_shape(self.pooling, x.type.shape))])

    def output_shapes(self, node, shapes):
        """Count the windows that fit."""
        return [pooled_shape(self.pooling, shapes[0])]

    def perform(self, node, inputs, outputs):
        """Look at every window."""
        windows, inside, back = all_windows(self.pooling, inputs[0], 0.0)
        n = windows.shape[-1] if self.count_padding else inside.sum(axis=-1)
        y = windows.astype("float64").sum(axis=-1) / n
        outputs[0][0] = np.ascontiguousarray(back(y), dtype=node.outputs[0].type.dtype)

    def pullback(self, inputs, outputs, cotangents):
        """Share each gradient among the pixels of the window."""
        gradient = AvgPool2dGradient(self.pooling, self.count_padding)
        return [gradient(cotangents[0], *spatial_lengths(self.layout, inputs[0]))]


class GlobalAvgPool2d(ImageOp):
    """The mean of each channel of each image: (images, channels)."""

    __props__ = ("image_layout",)
    image_outputs = ()

    def __init__(self, layout: str = "NCHW"):
        check_layout(layout)
        self.image_layout = layout

    @property
    def layout(self) -> str:
        """The order of the axes."""
        return self.image_layout

    def with_layout(self, layout: str) -> GlobalAvgPool2d:
        """Return the Op on images of another layout."""
        return GlobalAvgPool2d(layout)

    def make_node(self, x):
        """Infer the shape as far as it is known."""
        x = float_tensor("x", x, (4,))
        return Apply(self, [x], [result(x.type.dtype, lengths(self.layout, x.type.shape)[:2])])

    def output_shapes(self, node, shapes):
        """Leave out height and width."""
        return [lengths(self.layout, shapes[0])[:2]]

    def perform(self, node, inputs, outputs):
        """Take the mean in float64."""
        (x,) = inputs
        if 0 in lengths(self.layout, x.shape)[2:]:
            raise ValueError(f"images of shape {x.shape} in {self.layout} have no pixels, and no mean")
        mean = x.mean(axis=AXES[self.layout][1:], dtype="float64")
        outputs[0][0] = mean.astype(x.dtype)

    def pullback(self, inputs, outputs, cotangents):
        """Share each gradient among all pixels."""
        (x,), (gy,) = inputs, cotangents
        _, _, height, width = lengths(self.layout, x.shape)
        share = gy / pt.cast(height * width, gy.type.dtype)
        order = ordered(self.layout, 0, 1, "x", "x")
        # PyTensor drops the alloc where an elementwise Op reads it.
        return [pt.alloc(share.dimshuffle(order), *known_lengths(x))]


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
    """
    return MaxPool2d(pooling_of(size, stride, padding))(x)[0]


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
    """
    return AvgPool2d(pooling_of(size, stride, padding), bool(count_padding))(x)


def global_avg_pool2d(x: Any) -> Variable:
    """Return the mean of each channel of each image.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)

    Returns
    -------
    tensor of x's dtype, shape (images, channels)
    """
    return GlobalAvgPool2d()(x)


def pooling_of(size: Any, stride: Any, padding: Any) -> Pooling:
    """Return the geometry that a user describes."""
    places = pair("size", size)
    steps = places if stride is None else pair("stride", stride)
    return Pooling(Window(places, steps, padding_pairs(padding)))


def pooled_shape(pooling: Pooling, shape: Any) -> tuple[Any, ...]:
    """Return the symbolic shape of the result."""
    n_images, channels, height, width = lengths(pooling.layout, shape)
    count, (rows, columns) = pooling.window.count, pooling.size
    return ordered(pooling.layout, n_images, channels, count(0, height, rows), count(1, width, columns))


def all_windows(pooling: Pooling, x: np.ndarray, outside: float) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return what all windows see, channels first, for a definition.

    Parameters
    ----------
    pooling : Pooling
    x : array
        Images in its layout.
    outside : float
        Value of the padding.

    Returns
    -------
    windows : array, shape (images, channels, rows, columns, places)
    inside : array of bool
        Which places are in the image; broadcasts with the windows.
    back : callable
        Returns a view of a result in the layout.
    """
    pooling.output_shape(x.shape)
    last = pooling.layout == "NHWC"
    x = x.transpose(0, 3, 1, 2) if last else x
    around = ((0, 0), (0, 0), *pooling.window.padding)
    image = np.pad(x, around, constant_values=outside)
    inside = np.pad(np.ones((1, 1, *x.shape[2:]), bool), around)
    down, right = pooling.window.stride

    def cut(array):
        windows = sliding_window_view(array, pooling.size, axis=(2, 3))[:, :, ::down, ::right]
        return windows.reshape(*windows.shape[:4], pooling.size[0] * pooling.size[1])

    return cut(image), cut(inside), lambda y: y.transpose(0, 2, 3, 1) if last else y


@array_funcify.register(MaxPool2d)
def max_pool_entry(op, node, xp):
    """A kernel for maxima and their places."""
    kernels = pooling_kernels(xp, node.outputs[0].type.dtype)
    return takes_out(kernels.max_pool(op.pooling, node.outputs[1].type.dtype))


@array_funcify.register(AvgPool2d)
def avg_pool_entry(op, node, xp):
    """A kernel for means."""
    return takes_out(pooling_kernels(xp, node.outputs[0].type.dtype).avg_pool(op.pooling, op.count_padding))


@array_funcify.register(GlobalAvgPool2d)
def global_avg_pool_entry(op, node, xp):
    """A kernel for the mean of each channel."""
    return takes_out(pooling_kernels(xp, node.outputs[0].type.dtype).global_avg_pool(op.layout))
