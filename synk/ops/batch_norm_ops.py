"""Batch normalisation as an Op, and its gradient as another.

    BatchNorm(x, gamma, beta) -> y, mean, inv_std
    BatchNormGradient(gy, x, gamma, beta, mean, inv_std) -> gx, ggamma, gbeta

``x`` is (N, C), or an image whose axes are in the order of ``layout``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.compile.tables import Width
from synk.kernels.choose import norm_kernels
from synk.kernels.plain_norm import PlainNorm, channel_axes, normalised
from synk.kernels.window import check_layout
from synk.ops.checks import common_length, float_tensor, same_shape
from synk.ops.image import LayoutOp

CHANNELS = "the lengths of the channels and of their parameters"


def channel_axis(layout: str, ndim: int) -> int:
    """Return the position of the channels' axis; of a matrix it is the second in both layouts."""
    return 1 if layout == "NCHW" else ndim - 1


class BatchNormOp(LayoutOp):
    """An Op on a matrix, or on images in a layout, with a vector for each parameter and statistic."""

    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    differentiated = "batch_norm"

    @property
    def width(self) -> Width:  # type: ignore[override]
        """Images are read and given as they are; statistics and gradients of parameters stay float32."""
        return Width(takes=self.image_inputs, leads=self.image_inputs, gives=self.image_outputs)

    def results(self, x: Any, *vectors: Any) -> list[Any]:
        """Return new variables: one like ``x``, and two like the vectors, in its dtype."""
        channels = _channels(self, x, *vectors)
        shape = list(x.type.shape)
        shape[channel_axis(self.layout, x.type.ndim)] = channels
        return [TensorType(x.type.dtype, given)() for given in (shape, (channels,), (channels,))]


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
        inputs = self.check_inputs(x, gamma, beta)
        return Apply(self, [*inputs], self.results(*inputs))

    def output_shapes(self, node, shapes):
        x, gamma, _ = shapes
        return [x, gamma, gamma]

    def kernel(self, provider, node):
        return provider.batch_norm(self.eps, self.relu, self.layout)

    def check(self, x, *vectors):
        check_arrays(self.image_layout, x, *vectors)

    def perform(self, node, inputs, output_storage):
        """Compute in float64; y follows from the statistics as they are returned, which its gradient sees."""
        super().perform(node, inputs, output_storage)
        x, gamma, beta = (value.astype("float64") for value in inputs)
        cell, (mean,), (inv_std,) = output_storage
        y = normalised(x, gamma, beta, mean, inv_std, channel_axes(x.ndim, self.layout)[1])
        cell[0] = (np.maximum(y, 0) if self.relu else y).astype(mean.dtype)

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

    def __init__(self, relu: bool = False, layout: str = "NCHW"):
        check_layout(layout)
        self.relu, self.image_layout = bool(relu), layout

    def make_node(self, gy, x, gamma, beta, mean, inv_std):
        x = float_tensor("x", x, (2, 4))
        gy = float_tensor("gy", gy, (x.type.ndim,), x.type.dtype)
        named = {"gamma": gamma, "beta": beta, "mean": mean, "inv_std": inv_std}
        vectors = [float_tensor(name, value, (1,), x.type.dtype) for name, value in named.items()]
        return Apply(self, [gy, x, *vectors], self.results(x, *vectors))

    def output_shapes(self, node, shapes):
        return [shapes[1], shapes[2], shapes[2]]

    def kernel(self, provider, node):
        return provider.batch_norm_gradient(self.relu, self.layout)

    def check(self, gy, x, *vectors):
        check_arrays(self.image_layout, x, *vectors)
        same_shape("x and the gradient of y", x, gy)


def _channels(op: Any, x: Any, *vectors: Any) -> int | None:
    static = x.type.shape[channel_axis(op.layout, x.type.ndim)]
    return common_length(CHANNELS, static, *[vector.type.shape[0] for vector in vectors])


def check_arrays(layout: str, x: Any, *vectors: Any) -> None:
    """Raise ValueError unless arrays fit each other, whose lengths the graph need not know."""
    channels = x.shape[channel_axis(layout, x.ndim)]
    if any(len(vector) != channels for vector in vectors):
        common_length(CHANNELS, channels, *map(len, vectors))
