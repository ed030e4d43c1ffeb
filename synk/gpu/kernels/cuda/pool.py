"""Pooling in CUDA, with a thread for each result, and backward for each pixel: see ``pool.cu``.

arrays -> lengths, strides, padding -> a kernel -> maxima and their places, means, or gradients
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from synk.gpu.kernels.cuda.cuda_functions import (
    INDICES,
    PLACES,
    KernelDtype,
    contiguous,
    elements_at_once,
    kernel,
    kind_of,
    lengths,
)
from synk.gpu.kernels.cuda.launch import LANES, THREADS, WARPS, ceiling, column_blocks, flat_blocks
from synk.ops.kernels.plain_pool import PlainPool
from synk.ops.kernels.provider import array_for
from synk.ops.kernels.window import Pooling, image_shape
from synk.ops.kernels.window import lengths as lengths_of

FILE = "pool"

MOST = 2**30  # elements that are counted in 32 bits; a thread's counter may pass the last by a whole grid
MOST_ROWS = 65535  # of blocks in a grid


class CudaPool(PlainPool):
    """The provider of pooling in CUDA; `PlainPool` computes all other dtypes."""

    def max_pool(self, pooling: Pooling, index_dtype: Any) -> Callable:
        xp, plain = self._xp, super().max_pool(pooling, index_dtype)
        index_dtype = np.dtype(index_dtype)

        def run(x, out=None):
            kind = kind_of(x)
            if kind is None or index_dtype.name not in PLACES:
                return plain(x, out=out)
            (x,) = contiguous(xp, x.dtype, x)
            shape = pooling.output_shape(x.shape)
            outs = (None, None) if out is None else out
            y = array_for(xp, outs[0], x.dtype, shape)
            index = array_for(xp, outs[1], index_dtype, shape)
            _launch(xp, "max_pool", pooling, kind, x, y, (x,), (y, index), index)
            return y, index

        return run

    def max_pool_gradient(self, pooling: Pooling) -> Callable:
        xp, plain = self._xp, super().max_pool_gradient(pooling)

        def run(gy, index, height, width, out=None):
            kind = kind_of(gy)
            if kind is None or index.dtype.name not in PLACES:
                return plain(gy, index, height, width, out=out)
            (gy,), (index,) = contiguous(xp, gy.dtype, gy), contiguous(xp, index.dtype, index)
            gx = array_for(xp, out, gy.dtype, image_shape(pooling, int(height), int(width), gy, index))
            _launch(xp, "max_pool_gradient", pooling, kind, gx, gy, (gy, index), (gx,), index)
            return gx

        return run

    def avg_pool(self, pooling: Pooling, count_padding: bool) -> Callable:
        xp, plain = self._xp, super().avg_pool(pooling, count_padding)

        def run(x, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(x, out=out)
            (x,) = contiguous(xp, x.dtype, x)
            y = array_for(xp, out, x.dtype, pooling.output_shape(x.shape))
            _launch(xp, "avg_pool", pooling, kind, x, y, (x,), (np.int32(count_padding), y))
            return y

        return run

    def avg_pool_gradient(self, pooling: Pooling, count_padding: bool) -> Callable:
        xp, plain = self._xp, super().avg_pool_gradient(pooling, count_padding)

        def run(gy, height, width, out=None):
            kind = kind_of(gy)
            if kind is None:
                return plain(gy, height, width, out=out)
            (gy,) = contiguous(xp, gy.dtype, gy)
            gx = array_for(xp, out, gy.dtype, image_shape(pooling, int(height), int(width), gy))
            _launch(xp, "avg_pool_gradient", pooling, kind, gx, gy, (gy,), (np.int32(count_padding), gx))
            return gx

        return run

    def global_avg_pool(self, layout: str) -> Callable:
        xp, plain = self._xp, super().global_avg_pool(layout)

        def run(x, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(x, out=out)
            (x,) = contiguous(xp, x.dtype, x)
            images, channels, height, width = lengths_of(layout, x.shape)
            pixels = height * width
            y = array_for(xp, out, x.dtype, (images, channels))
            if layout == "NCHW":
                vector = elements_at_once(kind, pixels, x)
                run_planes = kernel_of(xp, "plane_means", x.dtype.name, vector)
                grid = (ceiling(images * channels, WARPS),)
                run_planes(grid, (LANES, WARPS), (x, *lengths(images * channels, pixels), y))
                return y
            vector = elements_at_once(kind, channels, x, y)
            run_columns = kernel_of(xp, "column_means", x.dtype.name, vector)
            block, blocks = column_blocks(channels, vector)
            # More images than a grid may have rows take several launches.
            for first in range(0, images, MOST_ROWS):
                some = x[first : first + MOST_ROWS]
                means = y[first : first + MOST_ROWS]
                run_columns((blocks, len(some)), block, (some, *lengths(pixels, channels), means))
            return y

        return run


def kernel_of(
    xp: ModuleType, name: str, dtype: str, vector: int, place: str = "uint8", wide: bool = False
) -> Callable:
    """Return a kernel of ``pool.cu``; ``wide`` counts elements in 64 bits, ``place`` is the index's dtype."""
    return kernel(xp, FILE, name, dtype, VECTOR=vector, PLACE=PLACES[place], INDEX=INDICES[wide])


def _launch(
    xp: ModuleType,
    name: str,
    pooling: Pooling,
    kind: KernelDtype,
    image: Any,
    results: Any,
    before: tuple,
    after: tuple,
    index: Any = None,
) -> None:
    """Launch a kernel with the arguments ``before``, then the geometry of the pooling, then ``after``.

    ``image`` and ``results`` are the arrays before and after pooling, ``index`` that of a max-pool.
    """
    last = pooling.layout == "NHWC"
    images, channels, height, width = lengths_of(pooling.layout, image.shape)
    units = (images, height, width, channels) if last else (images * channels, height, width, 1)
    (top, _), (left, _) = pooling.window.padding
    arrays = [image, results] if index is None else [image, results, index]
    vector = elements_at_once(kind, units[3], *arrays)
    wide = max(image.size, results.size) > MOST
    count = np.int64 if wide else np.int32
    sizes = [count(n) for n in (*units, *lengths_of(pooling.layout, results.shape)[2:])]
    sizes += [np.int32(n) for n in (*pooling.size, *pooling.window.stride, top, left)]
    target = image if name.endswith("gradient") else results
    place = "uint8" if index is None else index.dtype.name
    run = kernel_of(xp, name, image.dtype.name, vector, place, wide)
    run((flat_blocks(target.size // vector),), (THREADS,), (*before, *sizes, *after))
