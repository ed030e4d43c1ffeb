"""Pooling by loops in C: see ``pool.c``.

arrays -> Geometry -> pool.c -> maxima and their places, means, or gradients
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from synk.ops.kernels.loops.c_functions import CFunction, contiguous
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.provider import array_for
from synk.ops.kernels.window import Pooling, image_shape, lengths

MAX, MAX_GRADIENT = (CFunction("pool", name, "raaaaa") for name in ("max_pool", "max_pool_gradient"))
MEAN, MEAN_GRADIENT = (CFunction("pool", name, "raaaaa") for name in ("avg_pool", "avg_pool_gradient"))
GLOBAL_COLUMNS = CFunction("pool", "global_avg_pool", "aannnaa")
GLOBAL_PLANES = CFunction("pool", "global_avg_plane", "aann")

NO_INDEX = np.empty(0, "uint8")


class Geometry(ctypes.Structure):
    """The structure of ``pool.c`` that describes a pooling: lengths, strides and padding."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("images", "height", "width", "channels")),
        *((name, ctypes.c_long) for name in ("out_height", "out_width", "kernel_height", "kernel_width")),
        *((name, ctypes.c_long) for name in ("stride_height", "stride_width", "top", "left")),
        *((name, ctypes.c_int) for name in ("channels_last", "count_padding", "wide")),
    ]


class LoopPool(PlainPool):
    """The provider of pooling in C; `PlainPool` defines the results, and computes without a compiler."""

    def max_pool(self, pooling: Pooling, index_dtype: Any) -> Callable:
        plain = super().max_pool(pooling, index_dtype)
        index_dtype = np.dtype(index_dtype)

        def forward(x, out=None):
            loop = MAX.form(x.dtype)
            if loop is None or index_dtype not in ("uint8", "int32"):
                return plain(x, out=out)
            (x,) = contiguous(x.dtype, x)
            shape, g = pooling.output_shape(x.shape), geometry(pooling, x.shape, wide=index_dtype == "int32")
            y_out, index_out = (None, None) if out is None else out
            y, index = array_for(np, y_out, x.dtype, shape), array_for(np, index_out, index_dtype, shape)
            loop(ctypes.byref(g), x, y, index, *line(g, x.dtype))
            return y, index

        return forward

    def max_pool_gradient(self, pooling: Pooling) -> Callable:
        plain = super().max_pool_gradient(pooling)

        def backward(gy, index, height, width, out=None):
            loop = MAX_GRADIENT.form(gy.dtype)
            if loop is None or index.dtype not in ("uint8", "int32"):
                return plain(gy, index, height, width, out=out)
            (gy,), (index,) = contiguous(gy.dtype, gy), contiguous(index.dtype, index)
            shape = image_shape(pooling, int(height), int(width), gy, index)
            g = geometry(pooling, shape, wide=index.dtype == "int32")
            gx = array_for(np, out, gy.dtype, shape)
            loop(ctypes.byref(g), gx, gy, index, *line(g, gy.dtype))
            return gx

        return backward

    def avg_pool(self, pooling: Pooling, count_padding: bool) -> Callable:
        plain = super().avg_pool(pooling, count_padding)

        def forward(x, out=None):
            loop = MEAN.form(x.dtype)
            if loop is None:
                return plain(x, out=out)
            (x,) = contiguous(x.dtype, x)
            g = geometry(pooling, x.shape, count_padding=count_padding)
            y = array_for(np, out, x.dtype, pooling.output_shape(x.shape))
            loop(ctypes.byref(g), x, y, NO_INDEX, *line(g, x.dtype))
            return y

        return forward

    def avg_pool_gradient(self, pooling: Pooling, count_padding: bool) -> Callable:
        plain = super().avg_pool_gradient(pooling, count_padding)

        def backward(gy, height, width, out=None):
            loop = MEAN_GRADIENT.form(gy.dtype)
            if loop is None:
                return plain(gy, height, width, out=out)
            (gy,) = contiguous(gy.dtype, gy)
            shape = image_shape(pooling, int(height), int(width), gy)
            g = geometry(pooling, shape, count_padding=count_padding)
            gx = array_for(np, out, gy.dtype, shape)
            loop(ctypes.byref(g), gx, gy, NO_INDEX, *line(g, gy.dtype))
            return gx

        return backward

    def global_avg_pool(self, layout: str) -> Callable:
        plain = super().global_avg_pool(layout)

        def forward(x, out=None):
            columns, planes = GLOBAL_COLUMNS.form(x.dtype), GLOBAL_PLANES.form(x.dtype)
            if columns is None or planes is None:
                return plain(x, out=out)
            (x,) = contiguous(x.dtype, x)
            images, channels, height, width = lengths(layout, x.shape)
            if height * width == 0:
                return plain(x, out=out)  # says what is wrong
            y = array_for(np, out, x.dtype, (images, channels))
            if layout == "NHWC":
                columns(
                    x, y, images, height * width, channels, np.empty(channels, x.dtype), np.empty(channels)
                )
            else:
                planes(x, y, images * channels, height * width)
            return y

        return forward


def geometry(
    pooling: Pooling, shape: tuple[int, ...], count_padding: bool = True, wide: bool = False
) -> Geometry:
    """Return the structure for images of ``shape``; ``wide`` says whether indices are int32."""
    last = pooling.layout == "NHWC"
    images, channels, height, width = lengths(pooling.layout, shape)
    units = (images, height, width, channels) if last else (images * channels, height, width, 1)
    window = pooling.window
    results = window.output_lengths(height, width, *pooling.size)
    (top, _), (left, _) = window.padding
    return Geometry(*units, *results, *pooling.size, *window.stride, top, left, last, count_padding, wide)


def line(g: Geometry, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return scratch arrays for one line of results: of ``dtype``, and of integers of the same size."""
    length = g.channels if g.channels_last else g.out_width
    return np.empty(length, dtype), np.empty(length, f"int{8 * dtype.itemsize}")
