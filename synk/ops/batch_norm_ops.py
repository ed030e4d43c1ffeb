"""Batch normalisation as an Op, its gradient as another, and how both choose their kernels.

    BatchNorm(x, gamma, beta) -> y, mean, inv_std
    BatchNormGradient(gy, x, gamma, beta, mean, inv_std) -> gx, ggamma, gbeta

``x`` is (N, C), or an image whose axes are in the order of ``layout``. Imports PyTensor, the table of the
compiler, the kernels, ``checks`` and ``image``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.compile import array_funcify
from synk.kernels.choose import norm_kernels
from synk.kernels.window import check_layout
from synk.ops.checks import common_length, float_tensor, looked_at, refuse_second, same_shape
from synk.ops.image import ImageOp

CHANNELS = "the lengths of the channels and of their parameters"


def channel_axis(layout: str, ndim: int) -> int:
    """Return the position of the channels' axis; of a matrix it is the second in both layouts."""
    return 1 if layout == "NCHW" else ndim - 1


class BatchNormOp(ImageOp):
    """What both Ops have in common: x is a matrix, or images in a layout."""

    image_layout: str

    @property
    def layout(self) -> str:
        """The order of the axes, if x has four."""
        return self.image_layout

    def with_layout(self, layout: str) -> BatchNormOp:
        """Return the Op for images in another layout."""
        *others, _ = [getattr(self, name) for name in self.__props__]
        return type(self)(*others, layout)


class BatchNorm(BatchNormOp):
    """Normalise each channel by the statistics of the batch, scale and shift it.

    Outputs are ``y``, the mean of each channel, and one over the root of its biased variance plus ``eps``.

    Parameters
    ----------
    eps : float
        Added to variances, positive.
    relu : bool, default False
        Whether ``y`` is ``max(0, ·)`` of that.
    layout : {"NCHW", "NHWC"}
        Order of the axes, if ``x`` has four.
    """

    __props__ = ("eps", "relu", "image_layout")
    image_inputs = (0,)
    image_outputs = (0,)

    def __init__(self, eps: float, relu: bool = False, layout: str = "NCHW"):
        if not eps > 0:
            raise ValueError(f"eps={eps!r} must be positive: a constant channel has variance 0")
        check_layout(layout)
        self.eps, self.relu, self.image_layout = float(eps), bool(relu), layout

    def check_inputs(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
        """Return the inputs as variables that fit each other."""
        x = float_tensor("x", x, (2, 4))
        gamma, beta = (
            float_tensor(name, value, (1,), x.type.dtype)
            for name, value in (("gamma", gamma), ("beta", beta))
        )
        _channels(self, x, gamma, beta)
        return x, gamma, beta

    def make_node(self, x, gamma, beta):
        x, gamma, beta = self.check_inputs(x, gamma, beta)
        channels = _channels(self, x, gamma, beta)
        shape = list(x.type.shape)
        shape[channel_axis(self.layout, x.type.ndim)] = channels
        outputs = [TensorType(x.type.dtype, given) for given in (shape, (channels,), (channels,))]
        return Apply(self, [x, gamma, beta], [kind() for kind in outputs])

    def output_shapes(self, node, shapes):
        x, gamma, _ = shapes
        return [x, gamma, gamma]

    def perform(self, node, inputs, output_storage):
        x, gamma, beta = inputs
        check_arrays(self.layout, x, gamma, beta)
        dtype, axes = x.dtype, _other_axes(self.layout, x.ndim)
        wide = x.astype("float64")
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.float64(x.size / max(1, len(gamma)))
            mean = wide.sum(axis=axes, keepdims=True) / n
            variance = ((wide - mean) ** 2).sum(axis=axes) / n
        # Rounded before use: the gradient sees the same numbers.
        mean, inv_std = mean.reshape(-1).astype(dtype), (1 / np.sqrt(variance + self.eps)).astype(dtype)
        y = _normalised(self.layout, x, mean, inv_std, gamma, beta)
        results = (np.maximum(y, 0) if self.relu else y).astype(dtype), mean, inv_std
        for cell, value in zip(output_storage, results, strict=True):
            cell[0] = value

    def pullback(self, inputs, outputs, cotangents):
        gy, *others = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError(
                "the statistics of batch_norm are not differentiated; use "
                "pytensor.gradient.disconnected_grad on what is computed from them"
            )
        gradient = BatchNormGradient(self.relu, self.layout)
        return gradient(gy, *inputs, *outputs[1:], return_list=True)


class BatchNormGradient(BatchNormOp):
    """The gradient of `BatchNorm` for its three inputs.

    With ``relu``, ``gy`` counts where ``y > 0``. That is found from ``x`` again, by the arithmetic of the
    forward kernel, so neither ``y`` nor a mask is kept for it.
    """

    __props__ = ("relu", "image_layout")
    image_inputs = (0, 1)
    image_outputs = (0,)

    def __init__(self, relu: bool = False, layout: str = "NCHW"):
        check_layout(layout)
        self.relu, self.image_layout = bool(relu), layout

    def make_node(self, gy, x, gamma, beta, mean, inv_std):
        x = float_tensor("x", x, (2, 4))
        gy = float_tensor("gy", gy, (x.type.ndim,), x.type.dtype)
        named = {"gamma": gamma, "beta": beta, "mean": mean, "inv_std": inv_std}
        vectors = [float_tensor(name, value, (1,), x.type.dtype) for name, value in named.items()]
        channels = _channels(self, x, *vectors)
        shape = list(x.type.shape)
        shape[channel_axis(self.layout, x.type.ndim)] = channels
        outputs = [TensorType(x.type.dtype, given) for given in (shape, (channels,), (channels,))]
        return Apply(self, [gy, x, *vectors], [kind() for kind in outputs])

    def output_shapes(self, node, shapes):
        return [shapes[1], shapes[2], shapes[2]]

    def perform(self, node, inputs, output_storage):
        gy, x, gamma, beta, mean, inv_std = inputs
        check_arrays(self.layout, x, gamma, beta, mean, inv_std, gy=gy)
        dtype, axes = x.dtype, _other_axes(self.layout, x.ndim)
        unit = _normalised(self.layout, x, mean, inv_std, np.ones_like(gamma), np.zeros_like(beta))
        gy = gy.astype("float64")
        if self.relu:
            gy = np.where(_normalised(self.layout, x, mean, inv_std, gamma, beta).astype(dtype) > 0, gy, 0)
        gbeta, ggamma = gy.sum(axis=axes), (gy * unit).sum(axis=axes)
        n = max(1.0, x.size / max(1, len(gamma)))  # without rows there is nothing to divide
        across = [axis for axis in range(x.ndim) if axis in axes]
        spread = [np.expand_dims(v, across) for v in (gamma.astype("float64") * inv_std, gbeta, ggamma)]
        gx = spread[0] * (gy - spread[1] / n - unit * spread[2] / n)
        for cell, value in zip(output_storage, (gx, ggamma, gbeta), strict=True):
            cell[0] = value.astype(dtype)

    def pullback(self, inputs, outputs, cotangents):
        refuse_second("batch_norm")


def _channels(op: Any, x: Any, *vectors: Any) -> int | None:
    static = x.type.shape[channel_axis(op.layout, x.type.ndim)]
    return common_length(CHANNELS, static, *[vector.type.shape[0] for vector in vectors])


def check_arrays(layout: str, x: Any, *vectors: Any, gy: Any = None) -> None:
    """Raise ValueError unless arrays fit each other, whose lengths the graph need not know."""
    channels = x.shape[channel_axis(layout, x.ndim)]
    if any(len(vector) != channels for vector in vectors):
        common_length(CHANNELS, channels, *map(len, vectors))
    if gy is not None:
        same_shape("x and the gradient of y", x, gy)


def _other_axes(layout: str, ndim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(ndim) if axis != channel_axis(layout, ndim))


def _normalised(layout: str, x: Any, mean: Any, inv_std: Any, gamma: Any, beta: Any) -> Any:
    """Return ``gamma * (x - mean) * inv_std + beta`` in float64."""
    across = _other_axes(layout, x.ndim)
    mean, inv_std, gamma, beta = (
        np.expand_dims(v.astype("float64"), across) for v in (mean, inv_std, gamma, beta)
    )
    return gamma * (x - mean) * inv_std + beta


@array_funcify.register(BatchNorm)
def batch_norm_entry(op, node, xp):
    """Two passes over x and one over y, in one kernel."""
    kernels = norm_kernels(xp, node.inputs[0].type.dtype)
    return looked_at(partial(check_arrays, op.layout), kernels.batch_norm(op.eps, op.relu, op.layout))


@array_funcify.register(BatchNormGradient)
def batch_norm_gradient_entry(op, node, xp):
    """Two passes over gy and x, in one kernel."""
    kernels = norm_kernels(xp, node.inputs[1].type.dtype)
    run = kernels.batch_norm_gradient(op.relu, op.layout)
    return looked_at(lambda gy, x, *vectors: check_arrays(op.layout, x, *vectors, gy=gy), run)
