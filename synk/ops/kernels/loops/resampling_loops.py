"""Changes of the size of images by loops in C: see ``resampling.c``.

images -> their lengths, and where pixels come from -> resampling.c -> images, or gradients
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from synk.ops.kernels.loops.c_functions import CFunction, contiguous
from synk.ops.kernels.plain_resampling import PlainResampling
from synk.ops.kernels.provider import array_for
from synk.ops.kernels.resampling import Resampling
from synk.ops.kernels.window import lengths

RESAMPLE, RESAMPLE_GRADIENT = (
    CFunction("resampling", name, "aannnnnnaaaaaaia") for name in ("resample", "resample_gradient")
)


class LoopResampling(PlainResampling):
    """The provider of changes of size in C; `PlainResampling` defines them, and serves without a compiler."""

    def resample(self, resampling: Resampling) -> Callable:
        plain = super().resample(resampling)

        def forward(x, out=None):
            loop = RESAMPLE.form(x.dtype)
            if loop is None:
                return plain(x, out=out)
            (x,) = contiguous(x.dtype, x)
            y = array_for(np, out, x.dtype, resampling.output_shape(x.shape))
            loop(x, y, *geometry(resampling, x.shape, x.dtype.name))
            return y

        return forward

    def resample_gradient(self, resampling: Resampling) -> Callable:
        plain = super().resample_gradient(resampling)

        def backward(gy, height, width, out=None):
            loop = RESAMPLE_GRADIENT.form(gy.dtype)
            if loop is None:
                return plain(gy, height, width, out=out)
            (gy,) = contiguous(gy.dtype, gy)
            shape = resampling.image_shape(gy.shape, int(height), int(width))
            gx = array_for(np, out, gy.dtype, shape)
            loop(gx, gy, *geometry(resampling, shape, gy.dtype.name))
            return gx

        return backward


def geometry(resampling: Resampling, shape: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
    """Return the lengths of images of ``shape``, where pixels come from, whether two blend, and memory."""
    images, channels, height, width = lengths(resampling.layout, shape)
    outer, inner = (images, channels) if resampling.layout == "NHWC" else (images * channels, 1)
    rows, columns = (taps(resampling, k, n, dtype) for k, n in enumerate((height, width)))
    out_height, out_width = len(rows[0]), len(columns[0])
    work = np.empty((width + out_width) * inner, dtype)
    blends = resampling.mode != "nearest"
    return outer, height, width, inner, out_height, out_width, *rows, *columns, blends, work


@lru_cache(maxsize=64)
def taps(resampling: Resampling, direction: int, length: int, dtype: str) -> tuple[np.ndarray, ...]:
    """Return where pixels come from in one direction, as arrays for C."""
    first, second, weight = resampling.taps(np, direction, length)
    return first.astype("int64"), second.astype("int64"), weight.astype(dtype)
