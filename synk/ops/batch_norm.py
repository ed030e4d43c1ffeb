"""Batch normalisation: graphs for training and for use, the Op, and its gradient.

    batch_norm(train=True)  -> BatchNorm(x, gamma, beta) -> y, and the running statistics that follow it
    batch_norm(train=False) -> x * scale + shift, an elementwise graph that fuses with its neighbours
        batch_norm(all_ranks=True) -> the same results as the first, from sums over the rows of all ranks

    BatchNormGradient(gy, x, gamma, beta, mean, inv_std) -> gx, ggamma, gbeta

``x`` is (N, C), or an image whose axes are in the order of ``layout``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.compile.tables import Width
from synk.exact.collectives.collectives import all_sum
from synk.exact.collectives.marks import own
from synk.ops.checks import common_length, float_tensor, same_shape
from synk.ops.image import LayoutOp
from synk.ops.kernels.choose import norm_kernels
from synk.ops.kernels.plain_norm import PlainNorm, channel_axes, normalised
from synk.ops.kernels.window import check_layout

OF_ONE_RANK = "batch_norm(all_ranks=False), which takes its statistics of each rank's rows"
CHANNELS = "the lengths of the channels and of their parameters"

Updates = list[tuple[Any, Any]]


def batch_norm(
    x: Any,
    gamma: Any,
    beta: Any,
    running_mean: Any,
    running_var: Any,
    *,
    train: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    all_ranks: bool = False,
) -> tuple[Any, Updates]:
    """Normalise each channel to mean 0 and variance 1, then scale and shift it.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta``

    In training, ``mean`` and ``var`` (biased) are those of the batch, over all axes but the channels', and

        running_mean := (1 - momentum) * running_mean + momentum * mean
        running_var  := (1 - momentum) * running_var + momentum * var * n / (n - 1)

    for n values a channel. Otherwise they are the running ones. The gradient goes through the statistics
    of the batch to x; running statistics are not differentiated.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (N, C) or (N, C, H, W)
    gamma, beta : tensor, shape (C,)
        In the dtype of ``x``.
    running_mean, running_var : tensor of float32 or float64, shape (C,)
        Shared variables, where they are to be updated; they keep their dtype.
    train : bool
        Whether to normalise by the statistics of the batch.
    momentum : float, default 0.1
        Share of the batch in the running statistics, from 0 to 1 (as in torch).
    eps : float, default 1e-5
        Added to variances.
    all_ranks : bool, default False
        Whether the batch is that of all ranks: then the step equals that of one process, for the price of
        five small all-reduces a step, in which every rank waits for the others.

    Returns
    -------
    y : tensor
        Shape and dtype of ``x``.
    updates : list of (variable, new value)
        Of ``running_mean`` and ``running_var``; empty unless ``train``. A batch without rows leaves them as
        they are, one of a single value a channel counts with variance 0.

    See Also
    --------
    synk.extensions.layers.BatchNorm : the layer.

    References
    ----------
    Ioffe and Szegedy (2015), arXiv:1502.03167.

    Examples
    --------
    >>> x = pt.matrix("x")
    >>> mean, var = pytensor.shared(np.zeros(2)), pytensor.shared(np.ones(2))
    >>> y, statistics = ops.batch_norm(
    ...     x, pt.ones(2), pt.zeros(2), mean, var, train=True, all_ranks=True
    ... )
    >>> f = synk.function([x], y, updates=statistics)
    >>> f([[1.0, 2.0], [3.0, 6.0]]).round(3).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    """
    if not isinstance(train, bool | np.bool_):
        raise TypeError(f"train must be True or False, not {train!r}: make one function for each")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum!r} must lie between 0 and 1")
    running = [
        float_tensor(name, value, (1,))
        for name, value in (("running_mean", running_mean), ("running_var", running_var))
    ]
    x, gamma, beta = BatchNorm(eps).check_inputs(x, gamma, beta)
    if not train:
        return by_running_statistics(x, gamma, beta, running[0], running[1], eps), []
    n = math.prod([x.shape[axis] for axis in range(x.type.ndim) if axis != 1])
    if all_ranks:
        n = all_sum(n)
        y, mean, variance = over_all_ranks(x, gamma, beta, n, eps)
    else:
        y, mean, inv_std = BatchNorm(eps)(x, gamma, beta)
        n = own(n, OF_ONE_RANK)
        # The kernel returns inv_std, because the gradient reads it; the variance is computed back from it.
        variance = pt.maximum(1 / pt.sqr(inv_std) - constant(eps, inv_std), constant(0, inv_std))
    return y, running_updates(mean, variance, n, running, momentum)


def by_running_statistics(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float) -> Any:
    """Normalise by running statistics: ``x * scale + shift``, where scale and shift are vectors."""
    scale = gamma / pt.sqrt(var + constant(eps, var))
    shift = beta - mean * scale
    pattern = ("x", 0, *("x",) * (x.type.ndim - 2))
    scale, shift = (v.astype(x.type.dtype).dimshuffle(pattern) for v in (scale, shift))
    return x * scale + shift


def over_all_ranks(x: Any, gamma: Any, beta: Any, n: Any, eps: float) -> tuple[Any, Any, Any]:
    """Normalise by statistics of all ranks, ``n`` values a channel; return y, mean and biased variance."""
    axes = [axis for axis in range(x.type.ndim) if axis != 1]
    pattern = ("x", 0, *("x",) * (x.type.ndim - 2))
    count = n.astype(x.type.dtype)
    mean = all_sum(x.sum(axis=axes)) / count
    centred = x - mean.dimshuffle(pattern)
    variance = all_sum(pt.sqr(centred).sum(axis=axes)) / count
    scale = gamma / pt.sqrt(variance + constant(eps, variance))
    return centred * scale.dimshuffle(pattern) + beta.dimshuffle(pattern), mean, variance


def running_updates(mean: Any, variance: Any, n: Any, running: Any, momentum: float) -> Updates:
    """Return updates of the running mean and variance by those of a batch with ``n`` values a channel."""
    unbiased = variance * (n / pt.maximum(n - 1, 1)).astype(variance.type.dtype)
    updates = []
    for old, batch in zip(running, (mean, unbiased), strict=True):
        share = constant(momentum, old)
        new = (1 - share) * old + share * batch.astype(old.type.dtype)
        # The statistics of a batch without rows are NaN, and the running ones would stay NaN for ever.
        updates.append((old, pt.switch(pt.gt(n, 0), new, old)))
    return updates


def constant(value: float, like: Any) -> Any:
    """Return a constant in the dtype of ``like``: a Python float might turn float32 into float64."""
    return pt.constant(np.asarray(value, like.type.dtype))


def channel_axis(layout: str, ndim: int) -> int:
    """Return the position of the channels' axis; a matrix has it last, in both layouts."""
    return 1 if layout == "NCHW" else ndim - 1


class BatchNormOp(LayoutOp):
    """An Op on a matrix or on images, with one vector for each parameter and each statistic."""

    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    differentiated = "batch_norm"

    @property
    def width(self) -> Width:  # type: ignore[override]
        """Declare that images may be arrays of 16 bits, while vectors stay float32."""
        return Width(takes=self.image_inputs, requires=self.image_inputs, gives=self.image_outputs)

    def results(self, x: Any, *vectors: Any) -> list[Any]:
        """Return new variables for the outputs, in the dtype of ``x``: one of its shape, and two vectors."""
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
        Whether ``y`` is rectified: its negative elements become 0.
    layout : {"NCHW", "NHWC"}
        Order of the axes, if ``x`` has four.
    """

    __props__ = ("eps", "relu", "image_layout")

    def __init__(self, eps: float, relu: bool = False, layout: str = "NCHW"):
        if not eps > 0:
            raise ValueError(f"eps={eps!r} must be positive: a constant channel has variance 0")
        check_layout(layout)
        self.eps, self.relu, self.image_layout = float(eps), bool(relu), layout

    def rectified(self) -> BatchNorm:
        """Return the same Op with ``y`` rectified."""
        return BatchNorm(self.eps, True, self.layout)

    def check_inputs(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
        """Return the inputs as variables; raise an error if their dtypes or lengths do not fit each other."""
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
        """Compute in float64; y is computed from the rounded statistics, which the gradient reads, too."""
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

    With ``relu``, ``gy`` is taken as 0 where ``y`` is not positive. The sign of ``y`` is computed again from
    ``x``, by the arithmetic of the forward kernel, so that neither ``y`` nor a mask must be kept.
    """

    __props__ = ("relu", "image_layout")
    image_inputs = (0, 1)

    def __init__(self, relu: bool = False, layout: str = "NCHW"):
        check_layout(layout)
        self.relu, self.image_layout = bool(relu), layout

    def rectified(self) -> BatchNormGradient:
        """Return the same Op for a result that is rectified."""
        return BatchNormGradient(True, self.layout)

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
    """Raise ValueError unless the arrays' lengths fit each other; the graph may not have known them."""
    channels = x.shape[channel_axis(layout, x.ndim)]
    if any(len(vector) != channels for vector in vectors):
        common_length(CHANNELS, channels, *map(len, vectors))
