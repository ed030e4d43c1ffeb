"""Pooling by strided slices, on arrays of NumPy or a module like it.

There is one pass for each place of the window: the pixels that all windows have at that place are a strided
slice of the image, and the outputs of these windows are a slice of the result. Gradients are added in the
order of the places, so the same input always gives the same bits. NumPy computes image by image, so that an
image stays in a cache during all passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from synk.ops.kernels.plain_resampling import PlainResampling
from synk.ops.kernels.window import AXES, Pooling, image_shape, lengths


class PlainPool(PlainResampling):
    """The provider of pooling in array operations, and of changes of size."""

    def max_pool(self, pooling: Pooling, index_dtype: str) -> Callable:
        """Return ``f(x, out=None)``: each window's maximum, and the first place with it, row by row."""
        xp, unsigned = self._xp, f"uint{8 * np.dtype(index_dtype).itemsize}"

        def run(x, out=None):
            shape = pooling.output_shape(x.shape)
            y, index = fresh(xp, out, shape, (x.dtype, index_dtype))
            y[...] = -xp.inf
            found = index.view(unsigned)
            found[...] = np.iinfo(unsigned).max
            for images in self._blocks(x):
                image, best = x[images], y[images]
                for _, to, pixels in places(pooling, x.shape, shape):
                    xp.maximum(best[to], image[pixels], out=best[to])
                # On a device, to ask whether there is a NaN would mean waiting; there, NaN is always handled.
                lost = xp is not np or bool(np.isnan(best).any())
                for place, to, pixels in places(pooling, x.shape, shape):
                    other = image[pixels] != best[to]
                    if lost:
                        other &= image[pixels] == image[pixels]
                    # The code is the place if it has the maximum, else all bits set; the least code is the
                    # first place.
                    code = xp.negative(other.astype(unsigned)) | np.dtype(unsigned).type(place)
                    xp.minimum(found[images][to], code, out=found[images][to])
            return y, index

        return run

    def max_pool_gradient(self, pooling: Pooling) -> Callable:
        """Return ``f(gy, index, height, width, out=None)``: each gradient goes to where the maximum was."""
        xp = self._xp

        def run(gy, index, height, width, out=None):
            gx = self._zeros(pooling, gy, height, width, out)
            zero = np.zeros((), gy.dtype)[()]
            for images in self._blocks(gy):
                image, gradient, found = gx[images], gy[images], index[images]
                for place, to, pixels in places(pooling, gx.shape, gy.shape):
                    image[pixels] += xp.where(found[to] == place, gradient[to], zero)
            return gx

        return run

    def max_pool_chosen(self, pooling: Pooling) -> Callable:
        """Return ``f(x, index, out=None)``: of each window the pixel at the place that ``index`` holds."""
        xp = self._xp

        def run(x, index, out=None):
            shape = pooling.output_shape(x.shape)
            if index.shape != shape:
                raise ValueError(f"index has shape {index.shape}; pooling gives {shape}")
            (y,) = fresh(xp, (out,), shape, (x.dtype,))
            y[...] = 0
            for images in self._blocks(x):
                image, chosen, found = x[images], y[images], index[images]
                for place, to, pixels in places(pooling, x.shape, shape):
                    chosen[to] = xp.where(found[to] == place, image[pixels], chosen[to])
            return y

        return run

    def avg_pool(self, pooling: Pooling, count_padding: bool) -> Callable:
        """Return ``f(x, out=None)``: each window's mean; padding counts as zeros if ``count_padding``."""
        xp = self._xp

        def run(x, out=None):
            shape = pooling.output_shape(x.shape)
            (y,) = fresh(xp, (out,), shape, (x.dtype,))
            y[...] = 0
            scale = self._scale(pooling, count_padding, x.shape, shape, x.dtype)
            for images in self._blocks(x):
                image, total = x[images], y[images]
                for _, to, pixels in places(pooling, x.shape, shape):
                    total[to] += image[pixels]
                total *= scale
            return y

        return run

    def avg_pool_gradient(self, pooling: Pooling, count_padding: bool) -> Callable:
        """Return ``f(gy, height, width, out=None)``: the pixels of a window share its gradient equally."""

        def run(gy, height, width, out=None):
            gx = self._zeros(pooling, gy, height, width, out)
            scale = self._scale(pooling, count_padding, gx.shape, gy.shape, gy.dtype)
            for images in self._blocks(gy):
                image, share = gx[images], gy[images] * scale
                for _, to, pixels in places(pooling, gx.shape, gy.shape):
                    image[pixels] += share[to]
            return gx

        return run

    def global_avg_pool(self, layout: str) -> Callable:
        """Return ``f(x, out=None)``: the mean over all pixels, (images, channels)."""
        _, down, across = AXES[layout]

        def run(x, out=None):
            *_, height, width = lengths(layout, x.shape)
            if height * width == 0:
                raise ValueError(f"images of {height} x {width} pixels have no mean")
            # A sum within each row, then over rows, rounds less than one sum over all pixels. The axis of
            # rows comes before that of columns, so summing out columns first leaves its number unchanged.
            total = x.sum(axis=across).sum(axis=down)
            return self._xp.multiply(total, x.dtype.type(1 / (height * width)), out=out)

        return run

    def _blocks(self, x) -> Iterator[slice]:
        """Yield slices of one image each; on a device one of all images, since each slice costs a launch."""
        step = 1 if self._xp is np else max(1, len(x))
        for first in range(0, len(x), step):
            yield slice(first, first + step)

    def _zeros(self, pooling: Pooling, gy, height, width, out) -> Any:
        """Return an array of zeros in the shape of the images, to which gradients are added."""
        shape = image_shape(pooling, int(height), int(width), gy)
        (gx,) = fresh(self._xp, (out,), shape, (gy.dtype,))
        gx[...] = 0
        return gx

    def _scale(self, pooling: Pooling, count_padding: bool, image, outputs, dtype) -> Any:
        """Return the factor that makes a mean of each window's sum: one over its number of pixels."""
        xp, window = self._xp, pooling.window
        if count_padding:
            return np.dtype(dtype).type(1 / (pooling.size[0] * pooling.size[1]))
        sides = zip(lengths(pooling.layout, image)[2:], lengths(pooling.layout, outputs)[2:], strict=True)
        counts = []
        for direction, (length, n) in enumerate(sides):
            starts = xp.arange(n) * window.stride[direction] - window.padding[direction][0]
            counts.append(xp.minimum(starts + pooling.size[direction], length) - xp.maximum(starts, 0))
        scale = 1.0 / (counts[0][:, None] * counts[1])
        return (scale[:, :, None] if pooling.layout == "NHWC" else scale).astype(dtype)


def places(pooling: Pooling, image, outputs) -> Iterator[tuple[int, tuple, tuple]]:
    """Yield each place of the window, the outputs for which it is in the image, and the pixels there."""
    (height, width), counts = lengths(pooling.layout, image)[2:], lengths(pooling.layout, outputs)[2:]
    lead = (slice(None), slice(None)) if pooling.layout == "NCHW" else (slice(None),)
    for place, (i, j) in enumerate(product(*map(range, pooling.size))):
        to_rows, rows = pooling.window.inside(0, i, height, counts[0])
        to_columns, columns = pooling.window.inside(1, j, width, counts[1])
        yield place, (*lead, to_rows, to_columns), (*lead, rows, columns)


def fresh(xp, outs, shape, dtypes) -> list:
    """Return the arrays to write to: those of ``outs``, and a new one for each None."""
    outs = (None,) * len(dtypes) if outs is None else outs
    return [xp.empty(shape, d) if out is None else out for out, d in zip(outs, dtypes, strict=True)]
