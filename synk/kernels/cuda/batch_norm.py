"""Batch norm in CUDA: sums by channel in parts, their merger, and a pass over all: see ``batch_norm.cu``.

    arrays -> Launch (outer, channels, inner; blocks, parts) -> kernels -> y and statistics, or gradients

The signatures, and what runs for other dtypes, are those of ``plain_norm``. Has run on an emulator only.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from synk.kernels.cuda.arrays import contiguous, elements_at_once, kind_of
from synk.kernels.cuda.launch import LANES, ROWS, THREADS, WARPS, ceiling, column_blocks, splits
from synk.kernels.cuda.library import Kind, kernel, lengths
from synk.kernels.plain_norm import PlainNorm, deliver
from synk.kernels.results import array_for

FILE = "batch_norm"
SEGMENT = 1024  # elements of a plane that a warp takes at once, at most


class Launch:
    """How x is seen, and what blocks go over it.

    Parameters
    ----------
    x, *arrays
        Arrays of one shape.
    layout : str
    kind : Kind
        Of their dtype.
    """

    def __init__(self, xp: ModuleType, layout: str, kind: Kind, x: Any, *arrays: Any):
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
        self._kernel = partial(kernel, xp, FILE, dtype=x.dtype.name, **macros)
        self._xp = xp

    def run(self, step: str, *arguments: Any) -> None:
        """Launch the kernel for a step over all of x."""
        self._kernel(step)(self.grid, self.block, arguments)

    def merge(self, step: str, *arguments: Any) -> None:
        """Launch a kernel that has a warp for each channel."""
        self._kernel(step)((ceiling(self.channels, WARPS),), (LANES, WARPS), arguments)

    def parts(self, numbers: int) -> Any:
        """Return memory for so many numbers of each channel and split."""
        return self._xp.empty((numbers, self.splits, self.channels), "float64")


def forward(xp: ModuleType, eps: float, relu: bool, layout: str) -> Callable:
    """Return forward, as `PlainNorm.batch_norm`."""
    instead = PlainNorm(xp).batch_norm(eps, relu, layout)

    def run(x, gamma, beta, out=None):
        kind = kind_of(x)
        if kind is None:
            return instead(x, gamma, beta, out)
        outs = (None,) * 3 if out is None else out
        (x,), parameters = contiguous(xp, x.dtype, x), contiguous(xp, kind.real, gamma, beta)
        y = array_for(xp, outs[0], x.dtype, x.shape)
        launch = Launch(xp, layout, kind, x, y)
        wanted = [place if gamma.dtype == kind.real else None for place in outs[1:]]
        mean, inv_std = (array_for(xp, place, kind.real, (launch.channels,)) for place in wanted)
        parts, sizes = launch.parts(3), lengths(launch.splits, launch.channels)
        launch.run("moments", x, *launch.geometry, parts)
        launch.merge("statistics", parts, *sizes, np.float64(eps), mean, inv_std)
        if gamma.dtype != kind.real:
            given = deliver(outs[1:], gamma.dtype, mean, inv_std)
            # Backward sees the rounded ones.
            mean, inv_std = contiguous(xp, kind.real, *given)
        launch.run("normalise", x, *parameters, mean, inv_std, *launch.geometry, np.int32(relu), y)
        return (y, *(given if gamma.dtype != kind.real else (mean, inv_std)))

    return run


def backward(xp: ModuleType, relu: bool, layout: str) -> Callable:
    """Return backward, as `PlainNorm.batch_norm_gradient`."""
    instead = PlainNorm(xp).batch_norm_gradient(relu, layout)

    def run(gy, x, gamma, beta, mean, inv_std, out=None):
        kind = kind_of(x)
        if kind is None:
            return instead(gy, x, gamma, beta, mean, inv_std, out)
        outs = (None,) * 3 if out is None else out
        gy, x = contiguous(xp, x.dtype, gy, x)
        parameters = contiguous(xp, kind.real, gamma, beta, mean, inv_std)
        gx = array_for(xp, outs[0], x.dtype, x.shape)
        launch = Launch(xp, layout, kind, x, gy, gx)
        wanted = [place if gamma.dtype == kind.real else None for place in outs[1:]]
        gradients = [array_for(xp, place, kind.real, (launch.channels,)) for place in wanted]
        offset, slope = (xp.empty(launch.channels, kind.real) for _ in range(2))
        parts, sizes = launch.parts(2), lengths(launch.splits, launch.channels)
        launch.run("products", gy, x, *parameters, *launch.geometry, np.int32(relu), parts)
        results = (*gradients, offset, slope)
        launch.merge("totals", parts, *sizes, np.float64(launch.count), parameters[3], *results)
        launch.run("differentiate", gy, x, *parameters, offset, slope, *launch.geometry, np.int32(relu), gx)
        if gamma.dtype != kind.real:
            gradients = list(deliver(outs[1:], gamma.dtype, *gradients))
        return (gx, *gradients)

    return run
