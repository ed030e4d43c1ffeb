"""Batch, group and layer norm and cross-entropy in array operations, for NumPy and for modules like it.

This module defines the results; the loops in C compute the same where there is a compiler, and fall back to
it. Each method returns an implementation that takes ``out=``: for several results a tuple, with None for each
result that gets a new array. No input is written to. An empty batch gives the same as in NumPy, but no
warnings.

    PlainNorm(xp).batch_norm(eps, relu, "NHWC") -> f(x, gamma, beta) -> y, mean, inv_std
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from synk.ops.kernels.provider import Provider
from synk.ops.kernels.window import lengths


class PlainNorm(Provider):
    """The provider in array operations: batch, group and layer norm, cross-entropy."""

    def batch_norm(self, eps: float, relu: bool, layout: str) -> Callable:
        """Return forward ``f(x, gamma, beta, out=None) -> (y, mean, inv_std)``, by statistics of the batch.

        ``y = (x - mean) * (gamma * inv_std) + beta``, where ``inv_std = 1 / sqrt(variance + eps)`` with the
        biased variance; with ``relu``, negative elements become 0 and NaN stays. ``layout`` is the order of
        the axes if x has four; it has no meaning for x of shape (N, C). All but x and y have shape (C,).
        """
        xp = self._xp

        def forward(x, gamma, beta, out=None):
            axes, spread = channel_axes(x.ndim, layout)
            mean, variance = moments(x, axes)
            inv_std = (1 / xp.sqrt(variance + eps)).astype(x.dtype, copy=False)
            y = normalised(x, gamma, beta, mean, inv_std, spread)
            if relu:
                y = xp.where(y < 0, x.dtype.type(0), y)
            return deliver(out, x.dtype, y, mean, inv_std)

        return forward

    def batch_norm_gradient(self, relu: bool, layout: str) -> Callable:
        """Return backward ``f(gy, x, gamma, beta, mean, inv_std, out=None) -> (gx, ggamma, gbeta)``.

        Without ``relu``, g is gy. With it, g is gy where y was positive and 0 elsewhere; y is computed again
        by the arithmetic of forward::

            ggamma = Σ g * (x - mean) * inv_std        gbeta = Σ g
            gx = gamma * inv_std * (g - gbeta / n - (x - mean) * inv_std * ggamma / n)
        """
        xp = self._xp

        def backward(gy, x, gamma, beta, mean, inv_std, out=None):
            axes, spread = channel_axes(x.ndim, layout)
            g = gy
            if relu:
                g = xp.where(normalised(x, gamma, beta, mean, inv_std, spread) > 0, gy, gy.dtype.type(0))
            n = max(1, x.size // max(1, mean.size))
            deviation = x - mean[spread]
            gbeta = g.sum(axes, dtype="float64")
            ggamma = (g * deviation).sum(axes, dtype="float64")
            ggamma = ggamma * inv_std if x.size else ggamma  # inv_std of an empty batch is NaN
            offset, slope = ((gbeta / n).astype(x.dtype), (ggamma / n * inv_std).astype(x.dtype))
            gx = (gamma * inv_std)[spread] * (g - offset[spread] - deviation * slope[spread])
            return deliver(out, x.dtype, gx, ggamma, gbeta)

        return backward

    def group_norm(self, eps: float, groups: int, relu: bool, layout: str) -> Callable:
        """Return forward ``f(x, gamma, beta, out=None) -> (y, mean, inv_std)``, by statistics of each image.

        A group is ``channels / groups`` channels, side by side, and all pixels of an image; mean and inv_std
        have the shape (images, groups), gamma and beta (channels,). x has four axes in the order of
        ``layout``; ``relu`` is that of `batch_norm`.
        """
        xp = self._xp

        def forward(x, gamma, beta, out=None):
            view = Grouped(layout, groups, x.shape)
            parts = x.reshape(view.shape)
            mean, variance = moments(parts, view.axes)
            inv_std = (1 / xp.sqrt(variance + eps)).astype(x.dtype, copy=False)
            y = view.normalised(parts, gamma, beta, mean, inv_std)
            if relu:
                y = xp.where(y < 0, x.dtype.type(0), y)
            return deliver(out, x.dtype, y.reshape(x.shape), mean, inv_std)

        return forward

    def group_norm_gradient(self, groups: int, relu: bool, layout: str) -> Callable:
        """Return backward ``f(gy, x, gamma, beta, mean, inv_std, out=None) -> (gx, ggamma, gbeta)``.

        With ``h = (x - mean) * inv_std``, and g as that of `batch_norm_gradient`::

            ggamma = Σ g * h        gbeta = Σ g        (over images and pixels)
            gx = inv_std * (g * gamma - mean(g * gamma) - h * mean(g * gamma * h))        (means of a group)
        """
        xp = self._xp

        def backward(gy, x, gamma, beta, mean, inv_std, out=None):
            view = Grouped(layout, groups, x.shape)
            parts, g = x.reshape(view.shape), gy.reshape(view.shape)
            if relu:
                y = view.normalised(parts, gamma, beta, mean, inv_std)
                g = xp.where(y > 0, g, gy.dtype.type(0))
            n = max(1, x.size // max(1, mean.size))
            h = (parts - view.by_group(mean)) * view.by_group(inv_std)
            slopes = g * view.by_channel(gamma)
            offset = view.by_group(slopes.sum(view.axes, dtype="float64") / n)
            slope = view.by_group((slopes * h).sum(view.axes, dtype="float64") / n)
            gx = view.by_group(inv_std) * (slopes - offset.astype(x.dtype) - h * slope.astype(x.dtype))
            over = view.over_images
            ggamma, gbeta = (v.sum(over, dtype="float64").reshape(gamma.shape) for v in (g * h, g))
            return deliver(out, x.dtype, gx.reshape(x.shape), ggamma, gbeta)

        return backward

    def layer_norm(self, eps: float, n_axes: int) -> Callable:
        """Return forward ``f(x, gamma, beta, out=None) -> (y, mean, inv_std)``: normalise each row.

        A row is the last ``n_axes`` axes together. gamma and beta have the shape of a row; mean and inv_std
        have the shape of the other axes.
        """
        xp = self._xp

        def forward(x, gamma, beta, out=None):
            axes = tuple(range(x.ndim - n_axes, x.ndim))
            spread = (...,) + (None,) * n_axes
            mean, variance = moments(x, axes)
            inv_std = (1 / xp.sqrt(variance + eps)).astype(x.dtype, copy=False)
            y = (x - mean[spread]) * inv_std[spread] * gamma + beta
            return deliver(out, x.dtype, y, mean, inv_std)

        return forward

    def layer_norm_gradient(self, n_axes: int) -> Callable:
        """Return backward ``f(gy, x, gamma, mean, inv_std, out=None) -> (gx, ggamma, gbeta)``.

        With ``h = (x - mean) * inv_std``::

            ggamma = Σ gy * h        gbeta = Σ gy        (over rows)
            gx = inv_std * (gy * gamma - mean(gy * gamma) - h * mean(gy * gamma * h))        (means of a row)
        """

        def backward(gy, x, gamma, mean, inv_std, out=None):
            lead, axes = tuple(range(x.ndim - n_axes)), tuple(range(x.ndim - n_axes, x.ndim))
            spread = (...,) + (None,) * n_axes
            n = max(1, gamma.size)
            h = (x - mean[spread]) * inv_std[spread]
            g = gy * gamma
            rest = g - (g.sum(axes) / n)[spread] - h * ((g * h).sum(axes) / n)[spread]
            ggamma, gbeta = (gy * h).sum(lead, dtype="float64"), gy.sum(lead, dtype="float64")
            return deliver(out, x.dtype, inv_std[spread] * rest, ggamma, gbeta)

        return backward

    def softmax_cross_entropy(self) -> Callable:
        """Return forward ``f(logits, labels, out=None) -> (losses, log_sum)``, both of shape (rows,).

        ``losses[i] = log_sum[i] - logits[i, labels[i]]``, ``log_sum = log Σ exp(logits)``. A label that is
        not the number of a column raises IndexError with NumPy; on a device, the loss becomes NaN.
        """
        xp = self._xp

        def forward(logits, labels, out=None):
            rows, columns = logits.shape
            wrong, labels = checked(labels, columns, xp)
            highest = logits.max(1) if columns else xp.zeros(rows, logits.dtype)
            # Infinity minus itself would be NaN, also in a row whose logits are all minus infinity.
            anchor = xp.where(xp.isinf(highest), logits.dtype.type(0), highest)
            with np.errstate(divide="ignore", invalid="ignore"):
                log = xp.log(xp.exp(logits - anchor[:, None]).sum(1, dtype="float64"))
                losses = log - (logits[xp.arange(rows), labels] - anchor)
            return deliver(out, logits.dtype, xp.where(wrong, xp.nan, losses), anchor + log)

        return forward

    def softmax_cross_entropy_gradient(self) -> Callable:
        """Return backward ``f(g, logits, labels, log_sum, out=None) -> glogits``.

        ``glogits[i, j] = g[i] * (softmax(logits[i])[j] - (j == labels[i]))``.
        """
        xp = self._xp

        def backward(g, logits, labels, log_sum, out=None):
            rows, columns = logits.shape
            _, labels = checked(labels, columns, xp)
            with np.errstate(invalid="ignore"):
                power = xp.exp(logits - log_sum[:, None])
                # A log_sum of 1e4 has a rounding error of 5e-4 in float32, which every power would inherit.
                soft = power / power.sum(1)[:, None]
            soft[xp.arange(rows), labels] -= 1
            (result,) = deliver(None if out is None else (out,), logits.dtype, soft * g[:, None])
            return result

        return backward


class Grouped:
    """A view of images with the channels of a group on an axis of their own, from the shape of the images.

    Attributes
    ----------
    shape : tuple of int
        (images, groups, channels of a group, pixels) or, with channels last, (images, pixels, groups,
        channels of a group).
    axes, over_images : tuple of int
        The axes of ``shape`` that a group has, and those over which one channel is summed.
    """

    def __init__(self, layout: str, groups: int, shape: tuple[int, ...]):
        images, channels, height, width = lengths(layout, shape)
        pixels, members = height * width, channels // groups
        self._first = layout == "NCHW"
        self.shape = (images, groups, members, pixels) if self._first else (images, pixels, groups, members)
        self.axes, self.over_images = ((2, 3), (0, 3)) if self._first else ((1, 3), (0, 1))
        self._of_channels = (groups, members, 1) if self._first else (groups, members)

    def by_group(self, values: Any) -> Any:
        """Return values of the shape (images, groups) such that they broadcast over ``shape``."""
        return values[:, :, None, None] if self._first else values[:, None, :, None]

    def by_channel(self, values: Any) -> Any:
        """Return a vector, one value a channel, such that it broadcasts over ``shape``."""
        return values.reshape(self._of_channels)

    def normalised(self, parts: Any, gamma: Any, beta: Any, mean: Any, inv_std: Any) -> Any:
        """Return images of ``shape``, normalised; backward calls it, too, so that signs agree."""
        scale = self.by_channel(gamma) * self.by_group(inv_std)
        return (parts - self.by_group(mean)) * scale + self.by_channel(beta)


def channel_axes(ndim: int, layout: str) -> tuple[tuple[int, ...], tuple]:
    """Return the axes to sum over, and the index by which a vector (C,) broadcasts along channels."""
    if ndim == 4 and layout == "NCHW":
        return (0, 2, 3), (slice(None), None, None)
    return tuple(range(ndim - 1)), (slice(None),)


def split(shape: tuple[int, ...], n_axes: int) -> tuple[tuple[int, ...], int]:
    """Return the lengths of all but the last ``n_axes`` axes, and the number of elements of those last."""
    first = len(shape) - n_axes
    return tuple(shape[:first]), prod(shape[first:])


def moments(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return mean and biased variance, summed in float64: NumPy sums a first axis one by one, inexactly."""
    with np.errstate(invalid="ignore", divide="ignore"):
        n = float(prod([x.shape[axis] for axis in axes]))
        mean = (x.sum(axes, dtype="float64", keepdims=True) / n).astype(x.dtype, copy=False)
        deviation = x - mean
        variance = (deviation * deviation).sum(axes, dtype="float64") / n
    return mean.reshape(variance.shape), variance


def normalised(x: Any, gamma: Any, beta: Any, mean: Any, inv_std: Any, spread: tuple) -> Any:
    """Return ``(x - mean) * (gamma * inv_std) + beta``; backward calls it, too, so that signs agree."""
    return (x - mean[spread]) * (gamma * inv_std)[spread] + beta[spread]


def checked(labels: Any, columns: int, xp: Any) -> tuple[Any, Any]:
    """Return a mask of the labels that are no column's number, and the labels with 0 in place of those.

    With NumPy such a label raises IndexError. On a device it does not: the host would have to wait for the
    mask.
    """
    wrong = (labels < 0) | (labels >= columns)
    if xp is np and wrong.any():
        row = int(wrong.argmax())
        raise wrong_label(row, int(labels[row]), columns)
    return wrong, xp.where(wrong, 0, labels)


def wrong_label(row: int, label: int, columns: int) -> IndexError:
    """Return the error for a label that is not the number of a column."""
    return IndexError(f"label {label} in row {row} is no class: logits have {columns} columns, from 0")


def deliver(out: Any, dtype: Any, *values: Any) -> tuple:
    """Return the values, each in its array of the tuple ``out``; without one, in ``dtype``."""
    results = []
    for place, value in zip((None,) * len(values) if out is None else out, values, strict=True):
        if place is not None:
            place[...] = value
        results.append(value.astype(dtype, copy=False) if place is None else place)
    return tuple(results)
