"""The end of a residual block in array operations: batch norm, shortcut, rectifier, and its gradient.

    residual(xp, eps, layout) -> f(x, gamma, beta, shortcut) -> y, mean, inv_std
    residual_gradient(xp, layout) -> f(x, y, gamma, beta, mean, inv_std, *gradients) -> gx, ggamma, gbeta, g

What the kernels in CUDA of ``cuda/residual`` leave to array operations. Imports ``plain_norm``.
"""

from collections.abc import Callable
from functools import reduce
from types import ModuleType

from synk.kernels.plain_norm import PlainNorm, deliver


def residual(xp: ModuleType, eps: float, layout: str) -> Callable:
    """Return forward: ``y = max(0, batch_norm(x) + shortcut)``, where NaN stays."""
    norm = PlainNorm(xp).batch_norm(eps, False, layout)

    def forward(x, gamma, beta, shortcut, out=None):
        y, *statistics = norm(x, gamma, beta)
        y = y + shortcut
        return deliver(out, x.dtype, xp.where(y < 0, x.dtype.type(0), y), *statistics)

    return forward


def residual_gradient(xp: ModuleType, layout: str) -> Callable:
    """Return backward: ``g`` is the sum of the gradients where y is positive, else 0.

    It is the gradient for the shortcut, and that from which those for x, gamma and beta follow.
    """
    norm_gradient = PlainNorm(xp).batch_norm_gradient(False, layout)

    def backward(x, y, gamma, beta, mean, inv_std, *gradients, out=None):
        g = xp.where(y > 0, reduce(lambda a, b: a + b, gradients), y.dtype.type(0))
        return deliver(out, x.dtype, *norm_gradient(g, x, gamma, beta, mean, inv_std), g)

    return backward
