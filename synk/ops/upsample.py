"""Changes of the size of images, as symbolic Ops.

    upsample2d -> Upsample2d(x) -> gradient gy -> Upsample2dGradient(gy, height, width) -> gradient for x

Both are linear, and each is the gradient of the other, so that there are derivatives of any order.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from synk.ops.checks import float_tensor, named
from synk.ops.image import ImageGradient, ImageOp, known, length, pair, result, spatial_lengths
from synk.ops.kernels.choose import pooling_kernels
from synk.ops.kernels.plain_resampling import PlainResampling
from synk.ops.kernels.resampling import Resampling
from synk.ops.kernels.window import lengths, ordered


class ResamplingOp(ImageOp):
    """An Op that changes the size of images, or the gradient of one."""

    __props__ = ("resampling",)
    provider, plain = staticmethod(pooling_kernels), PlainResampling(np)

    def __init__(self, resampling: Resampling):
        self.resampling = resampling


class Upsample2d(ResamplingOp):
    """The images x in another size."""

    def make_node(self, x):
        x = float_tensor("x", x, (4,))
        n_images, channels, *sides = lengths(self.layout, x.type.shape)
        made = [self.known_side(direction, side) for direction, side in enumerate(sides)]
        return Apply(self, [x], [result(x.type.dtype, ordered(self.layout, n_images, channels, *made))])

    def output_shapes(self, node, shapes):
        n_images, channels, *sides = lengths(self.layout, shapes[0])
        made = [self.side(direction, side) for direction, side in enumerate(sides)]
        return [ordered(self.layout, n_images, channels, *made)]

    def kernel(self, provider, node):
        return provider.resample(self.resampling)

    def pullback(self, inputs, outputs, cotangents):
        """Send each gradient to the pixels that it came from."""
        sides = spatial_lengths(self.layout, inputs[0])
        return [Upsample2dGradient(self.resampling)(cotangents[0], *sides)]

    def known_side(self, direction: int, side: int | None) -> int | None:
        """Return the pixels of the result in one direction where they are known."""
        if side is None:
            return None if self.resampling.size is None else self.resampling.size[direction]
        return self.resampling.side(direction, side)

    def side(self, direction: int, side: Any) -> Any:
        """Return the pixels of the result in one direction, of a number or an expression."""
        if isinstance(side, int):
            return self.resampling.side(direction, side)
        if self.resampling.scale is None:
            return self.known_side(direction, None)
        scale = self.resampling.scale[direction]
        if scale == int(scale):
            return side * int(scale)
        return pt.cast(pt.floor(pt.cast(side, "float64") * np.float64(scale)), "int64")


class Upsample2dGradient(ResamplingOp, ImageGradient):
    """The gradient of `Upsample2d` for x, from gy, and the height and width of x."""

    def make_node(self, gy, height, width):
        gy, sides = float_tensor("gy", gy, (4,)), (length(height), length(width))
        shape = ordered(self.layout, *lengths(self.layout, gy.type.shape)[:2], *map(known, sides))
        return Apply(self, [gy, *sides], [result(gy.type.dtype, shape)])

    def output_shapes(self, node, shapes):
        return [ordered(self.layout, *lengths(self.layout, shapes[0])[:2], *node.inputs[1:])]

    def kernel(self, provider, node):
        return provider.resample_gradient(self.resampling)

    def pullback(self, inputs, outputs, cotangents):
        """Change the size of the cotangent."""
        return [Upsample2d(self.resampling)(cotangents[0]), disconnected_type(), disconnected_type()]


@named
def upsample2d(
    x: Any,
    scale: float | tuple[float, float] | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Variable:
    """Return images in another size, mostly a larger one.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (images, channels, height, width)
    scale : number or (number, number)
        How many times as high and wide, a fraction too; instead of ``size``.
    size : int or (int, int)
        Height and width of the result, in pixels.
    mode : {"nearest", "bilinear"}
        A pixel of the result is the one that its place falls on, or a mean of the four nearest ones, by
        distance.
    align_corners : bool
        For "bilinear": whether the centres of the corner pixels stay where they are. If not, their outer
        corners do, and beyond the outermost centres the image is constant.

    Returns
    -------
    tensor of x's dtype, shape (images, channels, height', width')
        Where ``height' = floor(height * scale)``. The numbers are those of torch's ``interpolate``.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or no pixels would be left.

    Examples
    --------
    >>> x = pt.tensor4("x")
    >>> f = synk.function([x], ops.upsample2d(x, 2))
    >>> f([[[[1.0, 2.0]]]]).tolist()
    [[[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]]]
    >>> g = synk.function([x], ops.upsample2d(x, size=(1, 3), mode="bilinear", align_corners=True))
    >>> g([[[[1.0, 2.0]]]]).tolist()
    [[[[1.0, 1.5, 2.0]]]]
    """
    if not isinstance(align_corners, bool | np.bool_):
        raise TypeError(f"align_corners={align_corners!r} must be True or False")
    sides = None if size is None else pair("size", size)
    scales = None if scale is None else scale_pair(scale)
    return Upsample2d(Resampling(sides, scales, mode, bool(align_corners)))(x)


def scale_pair(value: Any) -> tuple[float, float]:
    """Return a number, or a pair of them, as a pair for height and width; TypeError for anything else."""
    values = value if isinstance(value, tuple | list) else (value, value)
    numbers = [type(v) is not bool and isinstance(v, Real) and math.isfinite(v) for v in values]
    if len(values) != 2 or not all(numbers):
        raise TypeError(f"scale={value!r} must be a number or a pair of numbers (height, width)")
    return float(values[0]), float(values[1])
