"""Batch norm, layer norm and cross-entropy of softmax in CUDA; each has a CUDA file of its name.

    arrays -> NormLaunch (outer, channels, inner; blocks, parts) -> batch_norm.cu: sums by channel, results
           -> rows of the last axes -> layer_norm.cu, cross_entropy.cu: a block for each row

The host does not read labels; a label that is not the number of a column makes a loss of NaN.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from synk.gpu.kernels.cuda.cuda_functions import (
    KernelDtype,
    contiguous,
    elements_at_once,
    in_dtype,
    in_real,
    kernel,
    kind_of,
    lengths,
)
from synk.gpu.kernels.cuda.launch import (
    BLOCKS,
    LANES,
    ROWS,
    THREADS,
    WARPS,
    ceiling,
    column_blocks,
    row_threads,
    splits,
)
from synk.ops.kernels.plain_norm import PlainNorm, split
from synk.ops.kernels.provider import array_for, arrays_for

SEGMENT = 1024  # elements of a plane that a warp takes at once, at most


class NormLaunch:
    """The launches of batch norm's kernels over x, as (outer, channels, inner), in blocks and parts."""

    def __init__(self, xp: ModuleType, layout: str, kind: KernelDtype, x: Any, *arrays: Any):
        shape, axis = x.shape, 1 if x.ndim == 4 and layout == "NCHW" else x.ndim - 1
        self.channels = shape[axis]
        inner = prod(shape[axis + 1 :])
        outer = x.size // (self.channels * inner)
        self.count = outer * inner
        planes = inner > 1
        vector = elements_at_once(kind, inner if planes else self.channels, x, *arrays)
        if planes:
            self.block, blocks = (1, THREADS), self.channels
            steps = ceiling(outer * ceiling(inner, SEGMENT), WARPS)
        else:
            self.block, blocks = column_blocks(self.channels, vector)
            steps = ceiling(outer, self.block[1] * 2 * ROWS)
        self.splits = splits(blocks, steps)
        self.grid = (blocks, self.splits)
        self.geometry = lengths(outer, self.channels, inner, SEGMENT)
        macros = {"VECTOR": vector, "PLANES": "true" if planes else "false"}
        self._kernel = partial(kernel, xp, "batch_norm", dtype=x.dtype.name, **macros)
        self._xp = xp

    def run(self, step: str, *arguments: Any) -> None:
        """Launch the kernel called ``step``, over all of x."""
        self._kernel(step)(self.grid, self.block, arguments)

    def merge(self, step: str, *arguments: Any) -> None:
        """Launch the kernel called ``step``, with a warp for each channel, which merges partial sums."""
        self._kernel(step)((ceiling(self.channels, WARPS),), (LANES, WARPS), arguments)

    def parts(self, numbers: int) -> Any:
        """Return memory for ``numbers`` partial sums of each channel in each part."""
        return self._xp.empty((numbers, self.splits, self.channels), "float64")


class CudaNorm(PlainNorm):
    """The provider of normalisation and cross-entropy in CUDA; `PlainNorm` computes all other dtypes."""

    def batch_norm(self, eps: float, relu: bool, layout: str) -> Callable:
        xp, plain = self._xp, super().batch_norm(eps, relu, layout)

        def run(x, gamma, beta, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(x, gamma, beta, out)
            outs = (None,) * 3 if out is None else out
            (x,), parameters = contiguous(xp, x.dtype, x), contiguous(xp, kind.real, gamma, beta)
            y = array_for(xp, outs[0], x.dtype, x.shape)
            launch = NormLaunch(xp, layout, kind, x, y)
            statistics = in_real(xp, kind, gamma.dtype, outs[1:], gamma.shape, gamma.shape)
            parts, sizes = launch.parts(3), lengths(launch.splits, launch.channels)
            launch.run("moments", x, *launch.geometry, parts)
            launch.merge("statistics", parts, *sizes, np.float64(eps), *statistics)
            given = in_dtype(gamma.dtype, outs[1:], statistics)
            if given is not statistics:  # y is computed from the rounded statistics, as backward does
                statistics = contiguous(xp, kind.real, *given)
            launch.run("normalise", x, *parameters, *statistics, *launch.geometry, np.int32(relu), y)
            return (y, *given)

        return run

    def batch_norm_gradient(self, relu: bool, layout: str) -> Callable:
        xp, plain = self._xp, super().batch_norm_gradient(relu, layout)

        def run(gy, x, gamma, beta, mean, inv_std, out=None):
            kind = kind_of(x)
            if kind is None:
                return plain(gy, x, gamma, beta, mean, inv_std, out)
            outs = (None,) * 3 if out is None else out
            gy, x = contiguous(xp, x.dtype, gy, x)
            parameters = contiguous(xp, kind.real, gamma, beta, mean, inv_std)
            gx = array_for(xp, outs[0], x.dtype, x.shape)
            launch = NormLaunch(xp, layout, kind, x, gy, gx)
            gradients = in_real(xp, kind, gamma.dtype, outs[1:], gamma.shape, gamma.shape)
            offset, slope = (xp.empty(launch.channels, kind.real) for _ in range(2))
            parts, sizes = launch.parts(2), lengths(launch.splits, launch.channels)
            launch.run("products", gy, x, *parameters, *launch.geometry, np.int32(relu), parts)
            results = (*gradients, offset, slope)
            launch.merge("totals", parts, *sizes, np.float64(launch.count), parameters[3], *results)
            launch.run(
                "differentiate", gy, x, *parameters, offset, slope, *launch.geometry, np.int32(relu), gx
            )
            return (gx, *in_dtype(gamma.dtype, outs[1:], gradients))

        return run

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
            normalise = kernel(xp, "layer_norm", "normalise", x.dtype.name, VECTOR=vector)
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
            get = partial(kernel, xp, "layer_norm", dtype=x.dtype.name, VECTOR=vector)
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

    def softmax_cross_entropy(self) -> Callable:
        xp, plain = self._xp, super().softmax_cross_entropy()

        def run(logits, labels, out=None):
            kind = kind_of(logits)
            if kind is None:
                return plain(logits, labels, out=out)
            (logits,), (labels,) = contiguous(xp, logits.dtype, logits), contiguous(xp, "int64", labels)
            rows, columns = logits.shape
            results = arrays_for(xp, out, logits.dtype, (rows,), (rows,))
            vector = elements_at_once(kind, columns, logits)
            losses = kernel(xp, "cross_entropy", "losses_of", logits.dtype.name, VECTOR=vector)
            arguments = (logits, labels, *lengths(rows, columns), *results)
            losses((min(rows, 2 * BLOCKS),), (row_threads(columns, vector),), arguments)
            return tuple(results)

        return run

    def softmax_cross_entropy_gradient(self) -> Callable:
        xp, plain = self._xp, super().softmax_cross_entropy_gradient()

        def run(g, logits, labels, log_sum, out=None):
            kind = kind_of(logits)
            if kind is None:
                return plain(g, logits, labels, log_sum, out=out)
            g, logits, log_sum = contiguous(xp, logits.dtype, g, logits, log_sum)
            (labels,) = contiguous(xp, "int64", labels)
            rows, columns = logits.shape
            result = array_for(xp, out, logits.dtype, logits.shape)
            vector = elements_at_once(kind, columns, logits, result)
            differentiate = kernel(xp, "cross_entropy", "differentiate", logits.dtype.name, VECTOR=vector)
            arguments = (g, logits, labels, log_sum, *lengths(rows, columns), result)
            differentiate((min(rows, 2 * BLOCKS),), (row_threads(columns, vector),), arguments)
            return result

        return run
