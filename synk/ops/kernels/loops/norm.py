"""Batch, group and layer norm and cross-entropy of softmax by loops in C; each has a C file of its name.

arrays -> their lengths as the loop counts them -> batch_norm.c and its like -> results
"""

import ctypes
from collections.abc import Callable

import numpy as np

from synk.ops.kernels.loops.c_functions import CFunction, contiguous
from synk.ops.kernels.plain_norm import PlainNorm, split, wrong_label
from synk.ops.kernels.provider import array_for, arrays_for

BATCH_NORM = CFunction("batch_norm", "batch_norm", "aaaaaannnndiaa")
BATCH_NORM_GRADIENT = CFunction("batch_norm", "batch_norm_gradient", "aaaaaaaaannnniaa")
GROUP_NORM = CFunction("group_norm", "group_norm", "aaaaaannnnnndiaa")
GROUP_NORM_GRADIENT = CFunction("group_norm", "group_norm_gradient", "aaaaaaaaannnnnniaa")
LAYER_NORM = CFunction("layer_norm", "layer_norm", "aaaaaannd")
LAYER_NORM_GRADIENT = CFunction("layer_norm", "layer_norm_gradient", "aaaaaaaannaa")
CROSS_ENTROPY = CFunction("cross_entropy", "cross_entropy", "aaaann", ctypes.c_long)
CROSS_ENTROPY_GRADIENT = CFunction("cross_entropy", "cross_entropy_gradient", "aaaaann", ctypes.c_long)

# At least as many elements as the second pass of channels.c takes at a time. Where channels are the last
# axis, that pass may start at any channel, so the parameters are repeated for as many elements more.
PIECE = 256


class LoopNorm(PlainNorm):
    """The provider of normalisation and cross-entropy in C; without a compiler it computes as `PlainNorm`."""

    def batch_norm(self, eps: float, relu: bool, layout: str) -> Callable:
        plain = super().batch_norm(eps, relu, layout)

        def forward(x, gamma, beta, out=None):
            loop = BATCH_NORM.form(x.dtype)
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
            loop = BATCH_NORM_GRADIENT.form(x.dtype)
            if loop is None:
                return plain(gy, x, gamma, beta, mean, inv_std, out)
            inputs = contiguous(x.dtype, gy, x, gamma, beta, mean, inv_std)
            outer, channels, inner, width = geometry(x.shape, layout)
            gx, ggamma, gbeta = arrays_for(np, out, x.dtype, x.shape, (channels,), (channels,))
            doubles, reals = np.empty(2 * channels), np.empty(5 * width, x.dtype)
            loop(*inputs, gx, ggamma, gbeta, outer, channels, inner, width, relu, doubles, reals)
            return gx, ggamma, gbeta

        return backward

    def group_norm(self, eps: float, groups: int, relu: bool, layout: str) -> Callable:
        plain = super().group_norm(eps, groups, relu, layout)

        def forward(x, gamma, beta, out=None):
            loop = GROUP_NORM.form(x.dtype)
            if loop is None:
                return plain(x, gamma, beta, out=out)
            x, gamma, beta = contiguous(x.dtype, x, gamma, beta)
            images, (outer, channels, inner, width) = len(x), geometry((1, *x.shape[1:]), layout)
            by_group = images, groups
            y, mean, inv_std = arrays_for(np, out, x.dtype, x.shape, by_group, by_group)
            doubles, reals = np.empty(2 * channels), np.empty(3 * width, x.dtype)
            sizes = images, outer, channels, inner, groups, width
            loop(x, gamma, beta, y, mean, inv_std, *sizes, eps, relu, doubles, reals)
            return y, mean, inv_std

        return forward

    def group_norm_gradient(self, groups: int, relu: bool, layout: str) -> Callable:
        plain = super().group_norm_gradient(groups, relu, layout)

        def backward(gy, x, gamma, beta, mean, inv_std, out=None):
            loop = GROUP_NORM_GRADIENT.form(x.dtype)
            if loop is None:
                return plain(gy, x, gamma, beta, mean, inv_std, out=out)
            inputs = contiguous(x.dtype, gy, x, gamma, beta, mean, inv_std)
            images, (outer, channels, inner, width) = len(x), geometry((1, *x.shape[1:]), layout)
            gx, ggamma, gbeta = arrays_for(np, out, x.dtype, x.shape, (channels,), (channels,))
            doubles, reals = np.empty(4 * channels), np.empty(5 * width, x.dtype)
            sizes = images, outer, channels, inner, groups, width
            loop(*inputs, gx, ggamma, gbeta, *sizes, relu, doubles, reals)
            return gx, ggamma, gbeta

        return backward

    def layer_norm(self, eps: float, n_axes: int) -> Callable:
        plain = super().layer_norm(eps, n_axes)

        def forward(x, gamma, beta, out=None):
            loop = LAYER_NORM.form(x.dtype)
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
            loop = LAYER_NORM_GRADIENT.form(x.dtype)
            if loop is None:
                return plain(gy, x, gamma, mean, inv_std, out=out)
            _, width = split(x.shape, n_axes)
            inputs = contiguous(x.dtype, gy, x, gamma, mean, inv_std)
            gx, ggamma, gbeta = arrays_for(np, out, x.dtype, x.shape, gamma.shape, gamma.shape)
            doubles, reals = np.empty(2 * width), np.empty(2 * width, x.dtype)
            loop(*inputs, gx, ggamma, gbeta, mean.size, width, doubles, reals)
            return gx, ggamma, gbeta

        return backward

    def softmax_cross_entropy(self) -> Callable:
        plain = super().softmax_cross_entropy()

        def forward(logits, labels, out=None):
            loop = CROSS_ENTROPY.form(logits.dtype)
            if loop is None:
                return plain(logits, labels, out=out)
            rows, columns = check_rows(logits, labels)
            (logits,), (labels,) = contiguous(logits.dtype, logits), contiguous(np.dtype("int64"), labels)
            losses, log_sum = arrays_for(np, out, logits.dtype, (rows,), (rows,))
            check_labels(loop(logits, labels, losses, log_sum, rows, columns), labels, columns)
            return losses, log_sum

        return forward

    def softmax_cross_entropy_gradient(self) -> Callable:
        plain = super().softmax_cross_entropy_gradient()

        def backward(g, logits, labels, log_sum, out=None):
            loop = CROSS_ENTROPY_GRADIENT.form(logits.dtype)
            if loop is None:
                return plain(g, logits, labels, log_sum, out=out)
            rows, columns = check_rows(logits, labels, g, log_sum)
            g, logits, log_sum = contiguous(logits.dtype, g, logits, log_sum)
            (labels,) = contiguous(np.dtype("int64"), labels)
            glogits = array_for(np, out, logits.dtype, logits.shape)
            check_labels(loop(g, logits, labels, log_sum, glogits, rows, columns), labels, columns)
            return glogits

        return backward


def geometry(shape: tuple[int, ...], layout: str) -> tuple[int, int, int, int]:
    """Return the lengths of x as C sees it, (outer, channels, inner), and the length of repeated parameters.

    ``outer`` counts the elements of the axes before the channels, ``inner`` those behind, 1 if there is none.
    """
    if len(shape) == 4 and layout == "NCHW":
        outer, channels, inner = shape[0], shape[1], shape[2] * shape[3]
    else:
        outer, channels, inner = int(np.prod(shape[:-1])), shape[-1], 1
    return outer, channels, inner, channels + PIECE if inner == 1 else channels


def check_rows(logits: np.ndarray, *by_row: np.ndarray) -> tuple[int, int]:
    """Return the numbers of rows and columns; ValueError if a vector of ``by_row`` has another length."""
    rows, columns = logits.shape
    for array in by_row:
        if array.shape != (rows,):
            raise ValueError(f"logits have {rows} rows; an array by row has shape {array.shape}")
    return rows, columns


def check_labels(row: int, labels: np.ndarray, columns: int) -> None:
    """Raise IndexError if C refused the label of ``row``; it returns -1 if all labels were columns."""
    if row >= 0:
        raise wrong_label(row, int(labels[row]), columns)
