"""Pooling by slices, on arrays of NumPy or a module like it.

One pass per place of the window: all windows' pixels at that place are a strided slice of the image, and the
outputs that they belong to a slice of the result. Gradients add in the order of places, so the same run twice
gives the same bits. NumPy goes image by image, whose parts stay in a cache for all passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from synk.ops.kernels.provider import Provider
from synk.ops.kernels.window import AXES, Pooling, image_shape, lengths


class PlainPool(Provider):
    """Kernels for pooling."""

    def max_pool(self, pooling: Pooling, index_dtype: str) -> Callable:
        """Return ``f(x, out=None)``: maxima, and the place of the first one in the window, row by row."""
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
                # To ask on a device would wait for it; there, NaN is looked for without asking.
                lost = xp is not np or bool(np.isnan(best).any())
                for place, to, pixels in places(pooling, x.shape, shape):
                    other = image[pixels] != best[to]
                    if lost:
                        other &= image[pixels] == image[pixels]
                    # The place, or all bits where another one has the maximum: the least is the first place.
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

    def avg_pool(self, pooling: Pooling, count_padding: bool) -> Callable:
        """Return ``f(x, out=None)``: the mean of each window, padding counted as zeros or not at all."""
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
        """Return ``f(gy, height, width, out=None)``: each gradient shared by the pixels of its window."""

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
            # Row by row, then the rows: one sum of all pixels would lose digits. Down comes before across.
            total = x.sum(axis=across).sum(axis=down)
            return self._xp.multiply(total, x.dtype.type(1 / (height * width)), out=out)

        return run

    def _blocks(self, x) -> Iterator[slice]:
        """One image after the other; all at once on a device, which would wait for a launch each."""
        step = 1 if self._xp is np else max(1, len(x))
        for first in range(0, len(x), step):
            yield slice(first, first + step)

    def _zeros(self, pooling: Pooling, gy, height, width, out) -> Any:
        """Return the zeros to which a gradient is added."""
        shape = image_shape(pooling, int(height), int(width), gy)
        (gx,) = fresh(self._xp, (out,), shape, (gy.dtype,))
        gx[...] = 0
        return gx

    def _scale(self, pooling: Pooling, count_padding: bool, image, outputs, dtype) -> Any:
        """Return one over the number of pixels in each window."""
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
    """Yield each place of the window, the outputs that have it in the image, and the pixels there."""
    (height, width), counts = lengths(pooling.layout, image)[2:], lengths(pooling.layout, outputs)[2:]
    lead = (slice(None), slice(None)) if pooling.layout == "NCHW" else (slice(None),)
    for place, (i, j) in enumerate(product(*map(range, pooling.size))):
        to_rows, rows = pooling.window.inside(0, i, height, counts[0])
        to_columns, columns = pooling.window.inside(1, j, width, counts[1])
        yield place, (*lead, to_rows, to_columns), (*lead, rows, columns)


def fresh(xp, outs, shape, dtypes) -> list:
    """Return the arrays to write to: those that are given, new ones for None."""
    outs = (None,) * len(dtypes) if outs is None else outs
    return [xp.empty(shape, d) if out is None else out for out, d in zip(outs, dtypes, strict=True)]
