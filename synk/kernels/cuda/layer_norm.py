"""Layer norm in CUDA, a block for each row: see ``layer_norm.cu``.

arrays -> rows of the last axes -> kernels -> y and statistics, or gradients
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from synk.kernels.cuda.cuda_functions import (
    contiguous,
    elements_at_once,
    in_dtype,
    in_real,
    kernel,
    kind_of,
    lengths,
)
from synk.kernels.cuda.launch import BLOCKS, LANES, ROWS, WARPS, ceiling, column_blocks, row_threads, splits
from synk.kernels.plain_norm import PlainNorm, split
from synk.kernels.provider import array_for

FILE = "layer_norm"


class CudaLayerNorm(PlainNorm):
    """Layer norm; `PlainNorm` says what is computed, and computes other dtypes."""

    def layer_norm(self, eps: float, n_axes: int) -> Callable:
        xp, plain = self._xp, super().layer_norm(eps, n_axes)

        def run(x, gamma, beta, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(x, gamma, beta, out=out)
            outs = (None,) * 3 if out is None else out
            (x,), parameters = contiguous(xp, x.dtype, x), contiguous(xp, kind.real, gamma, beta)
            lead, width = split(x.shape, n_axes)
            rows = x.size // width
            y = array_for(xp, outs[0], x.dtype, x.shape)
            statistics = in_real(xp, kind, gamma.dtype, outs[1:], lead, lead)
            vector = elements_at_once(kind, width, x, y)
            normalise = kernel(xp, FILE, "normalise", x.dtype.name, VECTOR=vector)
            arguments = (x, *parameters, *lengths(rows, width), np.float64(eps), y, *statistics)
            normalise((min(rows, 2 * BLOCKS),), (row_threads(width, vector),), arguments)
            return (y, *in_dtype(gamma.dtype, outs[1:], statistics))

        return run

    def layer_norm_gradient(self, n_axes: int) -> Callable:
        xp, plain = self._xp, super().layer_norm_gradient(n_axes)

        def run(gy, x, gamma, mean, inv_std, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(gy, x, gamma, mean, inv_std, out=out)
            outs = (None,) * 3 if out is None else out
            gy, x = contiguous(xp, x.dtype, gy, x)
            parameter, *statistics = contiguous(xp, kind.real, gamma, mean, inv_std)
            _, width = split(x.shape, n_axes)
            rows = x.size // width
            gx = array_for(xp, outs[0], x.dtype, x.shape)
            gradients = in_real(xp, kind, gamma.dtype, outs[1:], gamma.shape, gamma.shape)
            vector = elements_at_once(kind, width, x, gy, gx)
            get = partial(kernel, xp, FILE, dtype=x.dtype.name, VECTOR=vector)
            block, blocks = column_blocks(width, vector)
            parts = splits(blocks, ceiling(rows, block[1] * 2 * ROWS))
            products = xp.empty((2, parts, width), "float64")
            sizes, arrays = lengths(rows, width), (gy, x, *statistics)
            get("products")((blocks, parts), block, (*arrays, *sizes, products))
            totals = get("totals")
            totals((ceiling(width, WARPS),), (LANES, WARPS), (products, *lengths(parts, width), *gradients))
            arguments = (gy, x, parameter, *statistics, *sizes, gx)
            get("differentiate")((min(rows, 2 * BLOCKS),), (row_threads(width, vector),), arguments)
            return (gx, *in_dtype(gamma.dtype, outs[1:], gradients))

        return run
