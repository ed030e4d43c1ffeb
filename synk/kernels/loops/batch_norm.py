"""Batch norm by loops in C, each two passes over memory: see ``batch_norm.c``.

arrays -> geometry (outer, channels, inner) -> batch_norm.c -> y and statistics, or gradients
"""

from collections.abc import Callable

import numpy as np

from synk.kernels.loops.c_functions import CFunction, contiguous
from synk.kernels.plain_norm import PlainNorm
from synk.kernels.provider import arrays_for

FORWARD = CFunction("batch_norm", "batch_norm", "aaaaaannnndiaa")
BACKWARD = CFunction("batch_norm", "batch_norm_gradient", "aaaaaaaaannnniaa")

# No fewer elements than the second pass takes at once: it may start at any channel, so the parameters of
# columns are repeated for as long.
PIECE = 256


class LoopBatchNorm(PlainNorm):
    """Batch norm; `PlainNorm` says what is computed, and computes where nothing can be compiled."""

    def batch_norm(self, eps: float, relu: bool, layout: str) -> Callable:
        plain = super().batch_norm(eps, relu, layout)

        def forward(x, gamma, beta, out=None):
            loop = FORWARD.form(x.dtype)
            if loop is None:
                return plain(x, gamma, beta, out)
            x, gamma, beta = contiguous(x.dtype, x, gamma, beta)
            outer, channels, inner, width = geometry(x.shape, layout)
            y, mean, inv_std = arrays_for(np, out, x.dtype, x.shape, (channels,), (channels,))
            doubles, reals = np.empty(2 * channels), np.empty(3 * width, x.dtype)
            arrays = x, gamma, beta, y, mean, inv_std
            loop(*arrays, outer, channels, inner, width, eps, relu, doubles, reals)
            return y, mean, inv_std

        return forward

    def batch_norm_gradient(self, relu: bool, layout: str) -> Callable:
        plain = super().batch_norm_gradient(relu, layout)

        def backward(gy, x, gamma, beta, mean, inv_std, out=None):
            loop = BACKWARD.form(x.dtype)
            if loop is None:
                return plain(gy, x, gamma, beta, mean, inv_std, out)
            inputs = contiguous(x.dtype, gy, x, gamma, beta, mean, inv_std)
            outer, channels, inner, width = geometry(x.shape, layout)
            gx, ggamma, gbeta = arrays_for(np, out, x.dtype, x.shape, (channels,), (channels,))
            doubles, reals = np.empty(2 * channels), np.empty(5 * width, x.dtype)
            loop(*inputs, gx, ggamma, gbeta, outer, channels, inner, width, relu, doubles, reals)
            return gx, ggamma, gbeta

        return backward


def geometry(shape: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Return outer, channels and inner, the lengths of x as C sees it, and that of repeated parameters.

    ``inner`` is 1 where channels are the last axis.
    """
    if len(shape) == 4 and layout == "NCHW":
        outer, channels, inner = shape[0], shape[1], shape[2] * shape[3]
    else:
        outer, channels, inner = int(np.prod(shape[:-1])), shape[-1], 1
    return outer, channels, inner, channels + PIECE if inner == 1 else channels
