"""Layer norm by loops in C: see ``layer_norm.c``.

    arrays -> rows of the last axes -> layer_norm.c -> y and statistics, or gradients

The signatures, and what runs where nothing can be compiled, are those of ``PlainNorm``. Imports NumPy, the
loader and ``plain_norm``.
"""

from collections.abc import Callable

import numpy as np

from synk.kernels.loops.arrays import contiguous, results
from synk.kernels.loops.library import Loop
from synk.kernels.plain_norm import PlainNorm

FORWARD = Loop("layer_norm", "layer_norm", "aaaaaannd")
BACKWARD = Loop("layer_norm", "layer_norm_gradient", "aaaaaaaannaa")


def layer_norm(eps: float, n_axes: int) -> Callable:
    """Return forward, as `PlainNorm.layer_norm`."""
    instead = PlainNorm(np).layer_norm(eps, n_axes)

    def forward(x, gamma, beta, out=None):
        loop = FORWARD.form(x.dtype)
        if loop is None:
            return instead(x, gamma, beta, out=out)
        lead, width = split(x.shape, n_axes)
        x, gamma, beta = contiguous(x.dtype, x, gamma, beta)
        y, mean, inv_std = results(out, x.dtype, x.shape, lead, lead)
        loop(x, gamma, beta, y, mean, inv_std, mean.size, width, eps)
        return y, mean, inv_std

    return forward


def layer_norm_gradient(n_axes: int) -> Callable:
    """Return backward, as `PlainNorm.layer_norm_gradient`."""
    instead = PlainNorm(np).layer_norm_gradient(n_axes)

    def backward(gy, x, gamma, mean, inv_std, out=None):
        loop = BACKWARD.form(x.dtype)
        if loop is None:
            return instead(gy, x, gamma, mean, inv_std, out=out)
        _, width = split(x.shape, n_axes)
        inputs = contiguous(x.dtype, gy, x, gamma, mean, inv_std)
        gx, ggamma, gbeta = results(out, x.dtype, x.shape, gamma.shape, gamma.shape)
        doubles, reals = np.empty(2 * width), np.empty(2 * width, x.dtype)
        loop(*inputs, gx, ggamma, gbeta, mean.size, width, doubles, reals)
        return gx, ggamma, gbeta

    return backward


def split(shape: tuple[int, ...], n_axes: int) -> tuple[tuple[int, ...], int]:
    """Return the leading axes, and the number of elements in a row of the others."""
    first = len(shape) - n_axes
    return shape[:first], int(np.prod(shape[first:]))
