"""Convolutions by matrix products, on arrays of NumPy or a module like it.

The pixels that each window covers become a row of a matrix, which is multiplied with the weights:

    image -> pieces -> columns (groups, windows, places and channels)
          -> product with weights (groups, places and channels, outputs of the group) -> part of the result

A piece is small enough to stay in a cache from the copy to the product, to the bias and relu. Where every
window is one pixel, the image is that matrix already, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from synk.compile.array_modules import array_module
from synk.ops.kernels.columns import (
    Grid,
    channels_first,
    columns,
    lies_evenly,
    matrix,
    part_of,
    pieces,
    split_groups,
    write_matrix,
)
from synk.ops.kernels.provider import Provider
from synk.ops.kernels.window import Convolution, lengths, ordered

# Bytes of columns at a time: for a product that is written, and for one that is added to a sum of the size of
# the weights. Of 0.5, 1, 2 and 4 MiB for the first, 2 is the best or near it for the 3 x 3 layers of a ResNet
# (92-109 GFLOP/s, batch 8, float32, one core with 1 MiB of L2); 4, 8 and 16 for the second differ less.
#
# There is no sum over places of products with shifted images, which needs no columns: it was no faster where
# outputs are as many as channels (96 against 99 GFLOP/s at 64 of 56 x 56, 77 against 92 at 512 of 7 x 7), and
# gained where they are far fewer (102 against 92 from 512 to 64), as in no layer with windows larger than 1.
BYTES = (2 << 20, 8 << 20)
# Windows that make a product large enough. Several images with channels first are copied after their product.
ENOUGH = 256
# A launch on a device costs more than its caches bring.
ON_DEVICE = (256 << 20, 256 << 20)


class Im2col(Provider):
    """The provider of convolutions by matrix products."""

    def __init__(self, xp: ModuleType):
        super().__init__(xp)
        self._matmul = array_module(xp).matmul
        self._written, self._added = BYTES if xp is np else ON_DEVICE

    def forward(self, convolution: Convolution, relu: bool, has_bias: bool) -> Callable:
        """Return ``f(x, w[, bias], out=None)``: the convolution plus the bias, rectified if ``relu``."""
        xp, layout, window = self._xp, convolution.layout, convolution.window

        def run(x, w, bias=None, out=None):
            shape = convolution.output_shape(x.shape, w.shape)
            if bias is not None and bias.shape != w.shape[:1]:
                raise ValueError(f"bias has shape {bias.shape}; give it {w.shape[:1]}, one per channel of w")
            y = xp.empty(shape, x.dtype) if out is None else out
            grid = Grid.of(window, lengths(layout, shape)[2:], w.shape[2:])
            self._correlate(x, w, grid, y, convolution, bias, relu)
            return y

        return run

    def input_gradient(self, convolution: Convolution) -> Callable:
        """Return ``f(gy, w, height, width, out=None)``, the gradient for the images."""
        xp, layout, groups, window = self._xp, convolution.layout, convolution.groups, convolution.window

        def run(gy, w, height, width, out=None):
            size, places = (int(height), int(width)), w.shape[2:]
            check_gradient(convolution, gy.shape, w.shape, *size)
            shape = ordered(layout, gy.shape[0], w.shape[1] * groups, *size)
            gx = xp.empty(shape, gy.dtype) if out is None else out
            if window.stride == (1, 1):
                # The gradient of a pixel sums over the windows that cover it: a convolution of gy with the
                # weights reversed.
                grid = Grid.of(window, size, places)
                reach = [(k - 1) * d for k, d in zip(places, window.dilation, strict=True)]
                start = -reach[0] - grid.start[0], -reach[1] - grid.start[1]
                grid = Grid(size, places, start, (1, 1), window.dilation)
                self._correlate(gy, turned(w, groups), grid, gx, convolution)
            else:
                gx[...] = 0
                self._scatter(gy, w, gx, convolution)
            return gx

        return run

    def weight_gradient(self, convolution: Convolution) -> Callable:
        """Return ``f(x, gy, kh, kw, out=None)``, the gradient for the weights."""
        xp, layout, groups, window = self._xp, convolution.layout, convolution.groups, convolution.window

        def run(x, gy, kh, kw, out=None):
            _, channels, height, width = lengths(layout, x.shape)
            _, outputs, *counts = lengths(layout, gy.shape)
            shape = (outputs, channels // groups, int(kh), int(kw))
            convolution.check_channels(channels, None, outputs)
            check_gradient(convolution, gy.shape, shape, height, width)
            grid = Grid.of(window, tuple(counts), shape[2:])
            x, gy = channels_first(x, layout), channels_first(gy, layout)
            total = None
            for piece in pieces(len(x), grid, channels * x.dtype.itemsize, self._added):
                seen = columns(xp, x, grid, groups, layout, piece)
                part = self._matmul(seen.swapaxes(1, 2), matrix(part_of(gy, piece), groups, layout))
                total = part if total is None else xp.add(total, part, out=part)
            gw = xp.empty(shape, x.dtype) if out is None else out
            gw[...] = 0 if total is None else as_weights(total, groups, shape, layout)
            return gw

        return run

    def _correlate(self, x, w, grid: Grid, y, convolution: Convolution, bias=None, relu=False) -> None:
        """Write the product of each window of x with the weights into the pixel of y that belongs to it."""
        xp, groups, layout = self._xp, convolution.groups, convolution.layout
        weights = self._as_matrix(w, groups, layout)
        bias = None if bias is None else bias.reshape(groups, 1, -1)
        x, y = channels_first(x, layout), channels_first(y, layout)
        few = ENOUGH if layout == "NCHW" and xp is np else None
        for piece in pieces(len(x), grid, x.shape[1] * x.dtype.itemsize, self._written, windows=few):
            target = part_of(y, piece)
            direct = lies_evenly(target, layout)
            seen = columns(xp, x, grid, groups, layout, piece)
            result = self._matmul(seen, weights, out=matrix(target, groups, layout) if direct else None)
            if bias is not None:
                xp.add(result, bias, out=result)
            if relu:
                xp.maximum(result, 0, out=result)
            if not direct:
                write_matrix(result, target)

    def _scatter(self, gy, w, gx, convolution: Convolution) -> None:
        """Add the gradient of each place of each window to the pixel of gx under it; gx starts as zeros."""
        groups, layout, window = convolution.groups, convolution.layout, convolution.window
        gy, gx = channels_first(gy, layout), channels_first(gx, layout)
        outputs, places, channels = gy.shape[2:], w.shape[2:], w.shape[1]
        # With the channels last in these products, each place is added in runs of as many as a group has.
        weights = self._as_matrix(w, groups, "NHWC").swapaxes(1, 2)
        grid = Grid.of(window, outputs, places)
        for piece in pieces(len(gx), grid, gx.shape[1] * gx.dtype.itemsize, self._written, whole=True):
            parts = self._matmul(matrix(part_of(gy, piece), groups, layout), weights)
            parts = parts.reshape(groups, -1, *outputs, *places, channels).transpose(1, 0, 6, 4, 5, 2, 3)
            target = split_groups(gx[piece.images], groups)
            for i, j in product(*map(range, places)):
                to_rows, rows = window.inside(0, i, gx.shape[2], outputs[0])
                to_columns, across = window.inside(1, j, gx.shape[3], outputs[1])
                target[:, :, :, rows, across] += parts[:, :, :, i, j, to_rows, to_columns]

    def _as_matrix(self, w, groups: int, layout: str) -> Any:
        """Return weights as (groups, places and channels, outputs of the group), ordered as in `columns`."""
        weights = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
        if layout == "NHWC" and w.shape[2:] != (1, 1):
            weights = self._xp.ascontiguousarray(weights.transpose(0, 1, 3, 4, 2))
        return weights.reshape(groups, w.shape[0] // groups, w[:1].size).swapaxes(1, 2)


def as_weights(product: Any, groups: int, shape: tuple[int, ...], layout: str) -> Any:
    """Return ``product``, (groups, places and channels, outputs of the group), in the shape of weights."""
    outputs, channels, *places = shape
    weights = product.swapaxes(1, 2)
    if layout == "NHWC":
        weights = weights.reshape(groups, outputs // groups, *places, channels).transpose(0, 1, 4, 2, 3)
    return weights.reshape(shape)


def turned(w: Any, groups: int) -> Any:
    """Return the weights of an input gradient: inputs and outputs exchanged, the places in reverse order."""
    outputs, channels, kh, kw = w.shape
    weights = w.reshape(groups, outputs // groups, channels, kh, kw)[..., ::-1, ::-1].swapaxes(1, 2)
    return weights.reshape(groups * channels, outputs // groups, kh, kw)


def check_gradient(convolution: Convolution, gy: Any, w: Any, height: int, width: int) -> None:
    """Raise ValueError unless ``gy`` is the shape of convolved images of height x width; ``w`` is a shape."""
    image = ordered(convolution.layout, gy[0], w[1] * convolution.groups, height, width)
    expected = convolution.output_shape(image, tuple(w))
    if tuple(gy) != expected:
        raise ValueError(f"gy has shape {tuple(gy)}; the convolution gives {expected}")
