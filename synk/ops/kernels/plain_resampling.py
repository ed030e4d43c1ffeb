"""Changes of the size of images in array operations, for NumPy and for modules like it.

Rows first, then columns: each is a choice of pixels, or a mean of two. Backward, NumPy adds each pixel's
gradient where it came from; on a device that is a product with the matrix of weights, which adds in a fixed
order, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from synk.ops.kernels.provider import Provider, array_for
from synk.ops.kernels.resampling import Resampling, Taps
from synk.ops.kernels.window import AXES, lengths, ordered


class PlainResampling(Provider):
    """The provider of changes of size in array operations."""

    def resample(self, resampling: Resampling) -> Callable:
        """Return ``f(x, out=None)``: the images in their new size."""
        xp, blends = self._xp, resampling.mode != "nearest"

        def run(x, out=None):
            y = array_for(xp, out, x.dtype, resampling.output_shape(x.shape))
            made = x
            for direction, axis in enumerate(AXES[resampling.layout][1:]):
                taps = resampling.taps(xp, direction, x.shape[axis])
                chosen = xp.take(made, taps.first, axis=axis)
                if blends:
                    weight = along(taps.weight.astype(x.dtype), axis)
                    chosen = (1 - weight) * chosen + weight * xp.take(made, taps.second, axis=axis)
                made = chosen
            y[...] = made
            return y

        return run

    def resample_gradient(self, resampling: Resampling) -> Callable:
        """Return ``f(gy, height, width, out=None)``: each gradient goes to the pixels it came from."""
        xp = self._xp

        def run(gy, height, width, out=None):
            shape = resampling.image_shape(gy.shape, int(height), int(width))
            gx = array_for(xp, out, gy.dtype, shape)
            made, sides = gy, lengths(resampling.layout, shape)[2:]
            for direction, axis in enumerate(AXES[resampling.layout][1:]):
                taps = resampling.taps(xp, direction, sides[direction])
                last = xp.swapaxes(made, axis, 3)
                made = xp.swapaxes(self._spread(last, taps, sides[direction]), axis, 3)
            gx[...] = made
            return gx

        return run

    def crop(self, layout: str) -> Callable:
        """Return ``f(x, top, left, height, width, out=None)``: the part of images from there on."""

        def run(x, top, left, height, width, out=None):
            part = x[inside(layout, top, left, height, width)]
            y = array_for(self._xp, out, x.dtype, part.shape)
            y[...] = part
            return y

        return run

    def pad(self, value: float, layout: str) -> Callable:
        """Return ``f(x, top, left, height, width, out=None)``: x from there on, and ``value`` elsewhere."""

        def run(x, top, left, height, width, out=None):
            n_images, channels, *sides = lengths(layout, x.shape)
            shape = ordered(layout, n_images, channels, int(height), int(width))
            y = array_for(self._xp, out, x.dtype, shape)
            y[...] = x.dtype.type(value)
            y[inside(layout, top, left, *sides)] = x
            return y

        return run

    def _spread(self, gradient: Any, taps: Taps, length: int) -> Any:
        """Return, for the last axis, the sums of the gradients of all pixels that come from each pixel."""
        xp, dtype = self._xp, gradient.dtype
        if xp is np:
            total = np.zeros((*gradient.shape[:-1], length), dtype)
            weight = taps.weight.astype(dtype)
            for pixels, share in ((taps.first, 1 - weight), (taps.second, weight)):
                at: Any = (..., pixels)
                np.add.at(total, at, gradient * share)
            return total
        pixels, weight = xp.arange(length), taps.weight[:, None]
        matrix = xp.where(taps.first[:, None] == pixels, 1 - weight, 0.0)
        matrix = matrix + xp.where(taps.second[:, None] == pixels, weight, 0.0)
        return xp.matmul(gradient, matrix.astype(dtype))


def inside(layout: str, top: Any, left: Any, height: Any, width: Any) -> tuple[slice, ...]:
    """Return the index of a rectangle of pixels in images."""
    every, rows = slice(None), slice(int(top), int(top) + int(height))
    return ordered(layout, every, every, rows, slice(int(left), int(left) + int(width)))


def along(vector: Any, axis: int) -> Any:
    """Return a vector such that it broadcasts along one of four axes."""
    return vector[(slice(None), *(None,) * (3 - axis))]
