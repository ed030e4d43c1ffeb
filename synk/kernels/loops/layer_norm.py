"""Layer norm by loops in C: see ``layer_norm.c``.

arrays -> rows of the last axes -> layer_norm.c -> y and statistics, or gradients
"""

from collections.abc import Callable

import numpy as np

from synk.kernels.loops.c_functions import CFunction, contiguous
from synk.kernels.plain_norm import PlainNorm, split
from synk.kernels.provider import arrays_for

FORWARD = CFunction("layer_norm", "layer_norm", "aaaaaannd")
BACKWARD = CFunction("layer_norm", "layer_norm_gradient", "aaaaaaaannaa")


class LoopLayerNorm(PlainNorm):
    """Layer norm; `PlainNorm` says what is computed, and computes where nothing can be compiled."""

    def layer_norm(self, eps: float, n_axes: int) -> Callable:
        plain = super().layer_norm(eps, n_axes)

        def forward(x, gamma, beta, out=None):
            loop = FORWARD.form(x.dtype)
            if loop is None:
                return plain(x, gamma, beta, out=out)
            lead, width = split(x.shape, n_axes)
            x, gamma, beta = contiguous(x.dtype, x, gamma, beta)
            y, mean, inv_std = arrays_for(np, out, x.dtype, x.shape, lead, lead)
            loop(x, gamma, beta, y, mean, inv_std, mean.size, width, eps)
            return y, mean, inv_std

        return forward

    def layer_norm_gradient(self, n_axes: int) -> Callable:
        plain = super().layer_norm_gradient(n_axes)

        def backward(gy, x, gamma, mean, inv_std, out=None):
            loop = BACKWARD.form(x.dtype)
            if loop is None:
                return plain(gy, x, gamma, mean, inv_std, out=out)
            _, width = split(x.shape, n_axes)
            inputs = contiguous(x.dtype, gy, x, gamma, mean, inv_std)
            gx, ggamma, gbeta = arrays_for(np, out, x.dtype, x.shape, gamma.shape, gamma.shape)
            doubles, reals = np.empty(2 * width), np.empty(2 * width, x.dtype)
            loop(*inputs, gx, ggamma, gbeta, mean.size, width, doubles, reals)
            return gx, ggamma, gbeta

        return backward
