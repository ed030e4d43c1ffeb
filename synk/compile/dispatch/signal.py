"""Entries for convolutions: full, or where one input lies wholly inside the other."""

import numpy as np
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d

from synk.compile.array_modules import array_module
from synk.compile.tables import array_funcify


@array_funcify.register(Convolve1d)
def convolve_vectors(op, node, xp):
    """Convolve two vectors."""
    dtype = node.outputs[0].type.dtype

    def convolve(x, y, full):
        return xp.convolve(x, y, mode="full" if full else "valid").astype(dtype, copy=False)

    if xp is not np:
        # NumPy takes as long for one row after another; on a device each row would need a launch.
        convolve.batched = lambda x, y, full: convolve_batch(x, y, one_mode(full), xp)
    return convolve


@array_funcify.register(Convolve2d)
def convolve_matrices(op, node, xp):
    """Convolve two matrices by the Op's method: summing directly, or by Fourier transforms."""
    dtype, method = node.outputs[0].type.dtype, op.method
    module = array_module(xp)

    def convolve(x, y, full):
        # Imported on the first call: SciPy takes long over it.
        result = module.scipy_module("signal").convolve(x, y, mode="full" if full else "valid", method=method)
        return result.astype(dtype, copy=False)

    return convolve


def one_mode(full) -> bool:
    """Return the mode that all rows of a batch share; raise ValueError if rows have different modes."""
    modes = set(full.ravel().tolist())
    if len(modes) != 1:
        raise ValueError("a batch of convolutions needs one mode, full or valid, for all of its rows")
    return modes.pop()


def convolve_batch(x, y, full: bool, xp):
    """Convolve along the last axes, of lengths n and k; other axes broadcast.

    Computes ``sum(y[..., j] * x[..., i - j] for j)``. If ``full``, the result has length n + k - 1, as if the
    longer input were surrounded by zeros; otherwise max(n, k) - min(n, k) + 1.
    """
    if x.shape[-1] < y.shape[-1]:
        x, y = y, x
    width = y.shape[-1]
    if full:
        around = [(0, 0)] * (x.ndim - 1) + [(width - 1, width - 1)]
        x = xp.pad(x, around)
    windows = xp.lib.stride_tricks.sliding_window_view(x, width, axis=-1)
    return xp.matmul(windows, y[..., ::-1, None])[..., 0]
