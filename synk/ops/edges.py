"""Edges of images taken away or added, as symbolic Ops.

    crop -> Crop2d(x, top, left, height, width) -> gradient gy -> Pad2d(gy, top, left, x's height and width)
    pad  -> Pad2d(x, top, left, height, width)  -> gradient gy -> Crop2d(gy, top, left, x's height and width)

The lengths may be symbolic: they are inputs, read on the host. Each Op is the gradient of the other, so that
there are derivatives of any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from synk.compile.tables import host_inputs
from synk.ops.checks import float_tensor, named
from synk.ops.image import LayoutOp, known, length, padding_pairs, pair, result, spatial_lengths
from synk.ops.kernels.choose import pooling_kernels
from synk.ops.kernels.plain_resampling import PlainResampling
from synk.ops.kernels.window import check_layout, lengths, ordered


class EdgesOp(LayoutOp):
    """An Op on images x and four lengths: top, left, and the height and width of the result."""

    provider, plain = staticmethod(pooling_kernels), PlainResampling(np)

    def make_node(self, x, top, left, height, width):
        x, numbers = float_tensor("x", x, (4,)), [length(n) for n in (top, left, height, width)]
        n_images, channels, *sides = lengths(self.layout, x.type.shape)
        found = [known(number) for number in numbers]
        for direction, side in enumerate(sides):
            if None not in (side, found[direction], found[direction + 2]):
                self.check_direction(direction, side, found[direction], found[direction + 2])
        shape = ordered(self.layout, n_images, channels, *found[2:])
        return Apply(self, [x, *numbers], [result(x.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        n_images, channels, *_ = lengths(self.layout, shapes[0])
        return [ordered(self.layout, n_images, channels, *node.inputs[3:])]

    def connection_pattern(self, node):
        return [[True], *[[False]] * 4]

    def check(self, x, *numbers):
        sides = lengths(self.layout, x.shape)[2:]
        for direction, side in enumerate(sides):
            self.check_direction(direction, side, int(numbers[direction]), int(numbers[direction + 2]))

    def check_direction(self, direction: int, side: Any, start: Any, made: Any) -> None:
        """Raise ValueError unless the lengths in one direction, height or width, fit each other."""
        raise NotImplementedError


@host_inputs.register(EdgesOp)
def read_lengths(op: EdgesOp, node: Any) -> range:
    """Return the positions of the four lengths, which Python reads: they stay on the host."""
    return range(1, 5)


class Crop2d(EdgesOp):
    """The part of x that begins at row ``top`` and column ``left``."""

    __props__ = ("image_layout",)

    def __init__(self, layout: str = "NCHW"):
        check_layout(layout)
        self.image_layout = layout

    def kernel(self, provider, node):
        return provider.crop(self.layout)

    def check_direction(self, direction, side, start, made):
        if start < 0 or made < 1 or start + made > side:
            name = ("height", "width")[direction]
            raise ValueError(
                f"crop: {made} pixels from pixel {start} on are not in a {name} of {side} pixels; take fewer "
                "away, or larger images; pad makes them larger"
            )

    def pullback(self, inputs, outputs, cotangents):
        """Put each gradient where its pixel was, into zeros."""
        x, top, left, *_ = inputs
        padded = Pad2d(0.0, self.layout)(cotangents[0], top, left, *spatial_lengths(self.layout, x))
        return [padded, *(disconnected_type() for _ in range(4))]


class Pad2d(EdgesOp):
    """Images of ``value``, with x from row ``top`` and column ``left`` on."""

    __props__ = ("value", "image_layout")

    def __init__(self, value: float = 0.0, layout: str = "NCHW"):
        check_layout(layout)
        self.value, self.image_layout = float(value), layout

    def kernel(self, provider, node):
        return provider.pad(self.value, self.layout)

    def check_direction(self, direction, side, start, made):
        if start < 0 or start + side > made:
            name = ("height", "width")[direction]
            raise ValueError(
                f"pad: a {name} of {side} pixels, from pixel {start} on, does not fit in {made} pixels; "
                "padding must not be negative; crop takes pixels away"
            )

    def pullback(self, inputs, outputs, cotangents):
        """Take the gradients of the pixels that came from x."""
        x, top, left, *_ = inputs
        cropped = Crop2d(self.layout)(cotangents[0], top, left, *spatial_lengths(self.layout, x))
        return [cropped, *(disconnected_type() for _ in range(4))]


@named
def pad(x: Any, padding: Any, *, value: float = 0.0) -> Variable:
    """Add pixels of one value around images.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    padding : int, (int, int) or ((top, bottom), (left, right))
        Pixels added at each edge: everywhere, or in height and width.
    value : float
        What the new pixels hold.

    Returns
    -------
    tensor of x's dtype, shape (images, channels, top + height + bottom, left + width + right)

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or a number of pixels is negative.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.pad(x, ((0, 1), (1, 0)), value=7))
    >>> f([[[[1.0, 2.0]]]]).tolist()
    [[[[7.0, 1.0, 2.0], [7.0, 7.0, 7.0]]]]
    """
    x, edges = float_tensor("x", x, (4,)), padding_pairs(padding)
    check_edges("padding", edges)
    sides = [n + sum(edge) for n, edge in zip(spatial_lengths("NCHW", x), edges, strict=True)]
    return Pad2d(value)(x, edges[0][0], edges[1][0], *sides)


@named
def crop(x: Any, edges: Any = None, *, size: Any = None) -> Variable:
    """Take pixels away around images: as many as are given, or all beyond a size in the middle.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    edges : int, (int, int) or ((top, bottom), (left, right)), optional
        Pixels taken away at each edge: everywhere, or in height and width; instead of ``size``.
    size : int, (int, int) or tensor of four axes, optional
        Height and width that stay, or images that have them. Of an odd number of pixels too many, one more
        is taken away at the bottom or on the right.

    Returns
    -------
    tensor of x's dtype, shape (images, channels, height', width')

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no pixels would be left.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.crop(x, size=(1, 2)))
    >>> f(np.arange(12.0).reshape(1, 1, 3, 4)).tolist()
    [[[[5.0, 6.0]]]]
    """
    x = float_tensor("x", x, (4,))
    if (edges is None) == (size is None):
        raise ValueError(f"give edges or a size, one of them: edges={edges!r}, size={size!r}")
    height, width = spatial_lengths("NCHW", x)
    if edges is not None:
        (top, bottom), (left, right) = pairs = padding_pairs(edges, "edges")
        check_edges("edges", pairs)
        return Crop2d()(x, top, left, height - top - bottom, width - left - right)
    of_images = isinstance(size, Variable) and size.type.ndim == 4
    rows, columns = spatial_lengths("NCHW", size) if of_images else pair("size", size)
    return Crop2d()(x, (height - rows) // 2, (width - columns) // 2, rows, columns)


def check_edges(name: str, edges: Any) -> None:
    """Raise ValueError if a number of pixels is negative."""
    if min(map(min, edges)) < 0:
        raise ValueError(f"{name}={edges} must not be negative; crop takes pixels away, pad adds them")
