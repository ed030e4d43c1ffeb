"""Layer norm in CUDA, a block for each row: see ``layer_norm.cu``.

    arrays -> rows of the last axes -> kernels -> y and statistics, or gradients

The signatures, and what runs for other dtypes, are those of ``PlainNorm``. Has run on an emulator only.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType

import numpy as np

from synk.kernels.cuda.arrays import contiguous, elements_at_once, kind_of
from synk.kernels.cuda.launch import BLOCKS, LANES, ROWS, WARPS, ceiling, column_blocks, row_threads, splits
from synk.kernels.cuda.library import kernel, lengths
from synk.kernels.plain_norm import PlainNorm, deliver
from synk.kernels.results import array_for

FILE = "layer_norm"


def forward(xp: ModuleType, eps: float, n_axes: int) -> Callable:
    """Return forward, as `PlainNorm.layer_norm`."""
    instead = PlainNorm(xp).layer_norm(eps, n_axes)

    def run(x, gamma, beta, out=None):
        kind = kind_of(x)
        if kind is None:
            return instead(x, gamma, beta, out=out)
        outs = (None,) * 3 if out is None else out
        (x,), parameters = contiguous(xp, x.dtype, x), contiguous(xp, kind.real, gamma, beta)
        lead, width = split(x.shape, n_axes)
        rows = x.size // width
        y = array_for(xp, outs[0], x.dtype, x.shape)
        wanted = [place if gamma.dtype == kind.real else None for place in outs[1:]]
        statistics = [array_for(xp, place, kind.real, lead) for place in wanted]
        vector = elements_at_once(kind, width, x, y)
        normalise = kernel(xp, FILE, "normalise", x.dtype.name, VECTOR=vector)
        arguments = (x, *parameters, *lengths(rows, width), np.float64(eps), y, *statistics)
        normalise((min(rows, 2 * BLOCKS),), (row_threads(width, vector),), arguments)
        if gamma.dtype != kind.real:
            statistics = list(deliver(outs[1:], gamma.dtype, *statistics))
        return (y, *statistics)

    return run


def backward(xp: ModuleType, n_axes: int) -> Callable:
    """Return backward, as `PlainNorm.layer_norm_gradient`."""
    instead = PlainNorm(xp).layer_norm_gradient(n_axes)

    def run(gy, x, gamma, mean, inv_std, out=None):
        kind = kind_of(x)
        if kind is None:
            return instead(gy, x, gamma, mean, inv_std, out=out)
        outs = (None,) * 3 if out is None else out
        gy, x = contiguous(xp, x.dtype, gy, x)
        parameter, *statistics = contiguous(xp, kind.real, gamma, mean, inv_std)
        _, width = split(x.shape, n_axes)
        rows = x.size // width
        gx = array_for(xp, outs[0], x.dtype, x.shape)
        wanted = [place if gamma.dtype == kind.real else None for place in outs[1:]]
        gradients = [array_for(xp, place, kind.real, gamma.shape) for place in wanted]
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
        if gamma.dtype != kind.real:
            gradients = list(deliver(outs[1:], gamma.dtype, *gradients))
        return (gx, *gradients)

    return run


def split(shape: tuple[int, ...], n_axes: int) -> tuple[tuple[int, ...], int]:
    """Return the leading axes, and the number of elements in a row of the others."""
    first = len(shape) - n_axes
    return tuple(shape[:first]), prod(shape[first:])
