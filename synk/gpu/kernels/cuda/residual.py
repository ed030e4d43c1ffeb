"""The end of a residual block in CUDA: batch norm plus the shortcut, rectified; see ``residual.cu``.

    x -> moments, statistics (batch_norm) -> normalise_and_add -> y
    gradients of y -> masked_products -> g -> totals, differentiate (batch_norm) -> gradients

Compared with batch norm and elementwise kernels, forward saves one pass over y and two over the normalised x,
and backward one over g. Channels are the last axis.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from synk.gpu.kernels.cuda.cuda_functions import (
    KernelDtype,
    contiguous,
    elements_at_once,
    kernel,
    kind_of,
    lengths,
)
from synk.gpu.kernels.cuda.norm import NormLaunch
from synk.gpu.kernels.plain_residual import PlainResidual
from synk.ops.kernels.provider import array_for

FILE = "residual"


class CudaResidual(PlainResidual):
    """The provider of ends of residual blocks in CUDA; `PlainResidual` computes all other arrays."""

    def residual(self, eps: float, layout: str) -> Callable:
        xp, plain = self._xp, super().residual(eps, layout)

        def run(x, gamma, beta, shortcut, out=None):
            kind = kind_of(x)
            if not _serves(kind, x, layout, gamma):
                return plain(x, gamma, beta, shortcut, out=out)
            outs = (None,) * 3 if out is None else out
            (x, shortcut), parameters = (
                contiguous(xp, x.dtype, x, shortcut),
                contiguous(xp, kind.real, gamma, beta),
            )
            y = array_for(xp, outs[0], x.dtype, x.shape)
            launch = NormLaunch(xp, layout, kind, x, shortcut, y)
            mean, inv_std = (array_for(xp, place, kind.real, gamma.shape) for place in outs[1:])
            parts, sizes = launch.parts(3), lengths(launch.splits, launch.channels)
            launch.run("moments", x, *launch.geometry, parts)
            launch.merge("statistics", parts, *sizes, np.float64(eps), mean, inv_std)
            add = _kernel(xp, "normalise_and_add", kind, x, shortcut, y)
            sizes = lengths(x.size // launch.channels, launch.channels)
            add(launch.grid, launch.block, (x, shortcut, *parameters, mean, inv_std, *sizes, y))
            return y, mean, inv_std

        return run

    def residual_gradient(self, layout: str) -> Callable:
        xp, plain = self._xp, super().residual_gradient(layout)

        def run(x, y, gamma, beta, mean, inv_std, *gradients, out=None):
            kind = kind_of(x)
            if not _serves(kind, x, layout, gamma):
                return plain(x, y, gamma, beta, mean, inv_std, *gradients, out=out)
            outs = (None,) * 4 if out is None else out
            images = x, y, *gradients = contiguous(xp, x.dtype, x, y, *gradients)
            parameters = contiguous(xp, kind.real, gamma, beta, mean, inv_std)
            gx, g = (array_for(xp, place, x.dtype, x.shape) for place in (outs[0], outs[3]))
            ggamma, gbeta = (array_for(xp, place, kind.real, gamma.shape) for place in outs[1:3])
            launch = NormLaunch(xp, layout, kind, *images, gx, g)
            offset, slope = (xp.empty(launch.channels, kind.real) for _ in range(2))
            parts = launch.parts(2)
            add = _kernel(xp, "masked_products", kind, *images, gx, g)
            one, two = (*gradients, None)[:2]
            sizes = lengths(x.size // launch.channels, launch.channels)
            add(launch.grid, launch.block, (one, two, y, x, parameters[2], *sizes, g, parts))
            results = ggamma, gbeta, offset, slope
            sizes = lengths(launch.splits, launch.channels)
            launch.merge("totals", parts, *sizes, np.float64(launch.count), parameters[3], *results)
            no_relu = np.int32(0)
            launch.run("differentiate", g, x, *parameters, offset, slope, *launch.geometry, no_relu, gx)
            return gx, ggamma, gbeta, g

        return run


def _serves(kind: KernelDtype | None, x: Any, layout: str, gamma: Any) -> bool:
    """Return whether kernels can compute this: channels come last, and gamma has the dtype of sums."""
    last = x.ndim == 2 or layout == "NHWC"
    return kind is not None and last and gamma.dtype == kind.real


def _kernel(xp: ModuleType, name: str, kind: KernelDtype, *arrays: Any) -> Callable:
    """Return a kernel of ``residual.cu`` for these arrays, which have one shape."""
    vector = elements_at_once(kind, arrays[0].shape[-1], *arrays)
    return kernel(xp, FILE, name, arrays[0].dtype.name, VECTOR=vector)
