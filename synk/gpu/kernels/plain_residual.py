"""The end of a residual block in array operations: batch norm plus the shortcut, rectified.

It defines the results; the kernels in CUDA compute the same, and fall back to it. Each method returns an
implementation that takes ``out=``, as in `PlainNorm`.
"""

from collections.abc import Callable
from functools import reduce

from synk.ops.kernels.plain_norm import PlainNorm, deliver


class PlainResidual(PlainNorm):
    """The provider in array operations: `PlainNorm`, and ends of residual blocks."""

    def residual(self, eps: float, layout: str) -> Callable:
        """Return forward of the end of a residual block: ``y = max(0, batch_norm(x) + shortcut)``.

        It is ``f(x, gamma, beta, shortcut, out=None) -> (y, mean, inv_std)``; NaN stays NaN in y.
        """
        xp, norm = self._xp, PlainNorm(self._xp).batch_norm(eps, False, layout)

        def forward(x, gamma, beta, shortcut, out=None):
            y, *statistics = norm(x, gamma, beta)
            y = y + shortcut
            return deliver(out, x.dtype, xp.where(y < 0, x.dtype.type(0), y), *statistics)

        return forward

    def residual_gradient(self, layout: str) -> Callable:
        """Return backward of `residual`.

        It is ``f(x, y, gamma, beta, mean, inv_std, *gradients, out=None) -> (gx, ggamma, gbeta, g)``.
        ``g``, the gradient for the shortcut, is the sum of ``gradients`` where y is positive, else 0. The
        gradients for x, gamma and beta are those of batch norm for ``g``.
        """
        xp, norm_gradient = self._xp, PlainNorm(self._xp).batch_norm_gradient(False, layout)

        def backward(x, y, gamma, beta, mean, inv_std, *gradients, out=None):
            g = xp.where(y > 0, reduce(lambda a, b: a + b, gradients), y.dtype.type(0))
            return deliver(out, x.dtype, *norm_gradient(g, x, gamma, beta, mean, inv_std), g)

        return backward
