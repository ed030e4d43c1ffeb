"""Group normalisation: each image by the mean and variance of groups of its channels.

    group_norm -> GroupNorm(x, gamma, beta) -> y, mean, inv_std
    its gradient: GroupNormGradient(gy, x, gamma, beta, mean, inv_std) -> gx, ggamma, gbeta

With one channel a group it is instance normalisation. No statistic goes over rows, so that ranks and slices
make no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.ops.batch_norm import CHANNELS, channel_axis, constant
from synk.ops.checks import common_length, float_tensor, named, same_shape
from synk.ops.composed import partial_derivatives
from synk.ops.image import LayoutOp, is_int
from synk.ops.kernels.choose import norm_kernels
from synk.ops.kernels.plain_norm import PlainNorm
from synk.ops.kernels.window import check_layout, lengths


@named
def group_norm(x: Any, gamma: Any, beta: Any, groups: int, *, eps: float = 1e-5) -> Any:
    """Normalise groups of each image's channels to mean 0 and variance 1, then scale and shift each channel.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta``, where mean and (biased) variance are taken over the
    pixels and the channels of a group, for each image. With ``groups`` as many as channels, it is instance
    normalisation.

    Parameters
    ----------
    x : tensor of float32 or float64, shape (N, C), (N, C, L) or (N, C, H, W)
    gamma, beta : tensor, shape (C,)
        In the dtype of ``x``.
    groups : int
        Parts of the channels, side by side; must divide their number.
    eps : float, default 1e-5
        Added to variances.

    Returns
    -------
    tensor
        Shape and dtype of ``x``.

    Raises
    ------
    TypeError, ValueError
        An argument is none of these, or the numbers of channels do not fit each other and ``groups``.

    References
    ----------
    Wu and He (2018), arXiv:1803.08494. Ulyanov, Vedaldi and Lempitsky (2016), arXiv:1607.08022, of instances.

    Examples
    --------
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], ops.group_norm(x, pt.ones(4), pt.zeros(4), groups=2))
    >>> f([[1.0, 3.0, 2.0, 6.0]]).round(3).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    x = float_tensor("x", x, (2, 3, 4))
    op = GroupNorm(eps, groups)
    if x.type.ndim == 4:
        return op(x, gamma, beta)[0]
    of_image = [0, 1, *"x" * (4 - x.type.ndim), *range(2, x.type.ndim)]
    kept = [axis for axis, old in enumerate(of_image) if old != "x"]
    return op(x.dimshuffle(of_image), gamma, beta)[0].dimshuffle(kept)


class GroupNormOp(LayoutOp):
    """An Op on images with one vector for each parameter, and one number a group for each statistic."""

    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    groups: int

    def parameters(self, x: Any, **vectors: Any) -> list[Any]:
        """Return vectors, one number a channel of x, as variables; raise an error if they do not fit."""
        made = [float_tensor(name, value, (1,), x.type.dtype) for name, value in vectors.items()]
        self.channels(x, *made)
        return made

    def channels(self, x: Any, *vectors: Any) -> int | None:
        """Return the number of channels; ValueError if lengths differ, or groups do not divide them."""
        static = x.type.shape[channel_axis(self.layout, 4)]
        number = common_length(CHANNELS, static, *[vector.type.shape[0] for vector in vectors])
        self.check_channels(number)
        return number

    def check_channels(self, channels: int | None) -> None:
        """Raise ValueError if the groups do not divide the number of channels."""
        if channels is not None and channels % self.groups:
            raise ValueError(
                f"group_norm: groups={self.groups} does not divide {channels} channels; choose a divisor"
            )

    def check_arrays(self, x: Any, *vectors: Any) -> None:
        """Raise ValueError unless the lengths of arrays fit each other; the graph may not have known them."""
        channels = x.shape[channel_axis(self.layout, 4)]
        if any(len(vector) != channels for vector in vectors):
            raise ValueError(
                f"group_norm: x of shape {x.shape} has {channels} channels; give gamma and beta the shape "
                f"({channels},), not {', '.join(str(vector.shape) for vector in vectors)}"
            )
        self.check_channels(channels)


class GroupNorm(GroupNormOp):
    """Normalise each group of channels of each image, scale and shift each channel.

    Outputs are ``y``; the mean of each group, and one over the root of its biased variance plus ``eps``, of
    shape (images, groups).

    Parameters
    ----------
    eps : float
        Added to variances, positive.
    groups : int
        Parts of the channels.
    relu : bool, default False
        Whether ``y`` is rectified: its negative elements become 0.
    layout : {"NCHW", "NHWC"}
        Order of the axes.
    """

    __props__ = ("eps", "groups", "relu", "image_layout")

    def __init__(self, eps: float, groups: int, relu: bool = False, layout: str = "NCHW"):
        if not eps > 0:
            raise ValueError(f"eps={eps!r} must be positive: a constant group has variance 0")
        if not is_int(groups) or groups < 1:
            raise ValueError(f"groups={groups!r} must be an int, 1 or more")
        check_layout(layout)
        self.eps, self.groups, self.relu, self.image_layout = float(eps), int(groups), bool(relu), layout

    def rectified(self) -> GroupNorm:
        """Return the same Op with ``y`` rectified."""
        return GroupNorm(self.eps, self.groups, True, self.layout)

    def make_node(self, x, gamma, beta):
        x = float_tensor("x", x, (4,))
        inputs = [x, *self.parameters(x, gamma=gamma, beta=beta)]
        shape = list(x.type.shape)
        shape[channel_axis(self.layout, 4)] = self.channels(*inputs)
        by_group = shape[0], self.groups
        return Apply(self, inputs, [TensorType(x.type.dtype, s)() for s in (shape, by_group, by_group)])

    def output_shapes(self, node, shapes):
        x, *_ = shapes
        return [x, (x[0], self.groups), (x[0], self.groups)]

    def kernel(self, provider, node):
        return provider.group_norm(self.eps, self.groups, self.relu, self.layout)

    def check(self, x, *parameters):
        self.check_arrays(x, *parameters)

    def pullback(self, inputs, outputs, cotangents):
        gy, *others = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError(
                "the statistics of group_norm are not differentiated; compute them by x.mean and x.var"
            )
        gradient = GroupNormGradient(self.eps, self.groups, self.relu, self.layout)
        return gradient(gy, *inputs, *outputs[1:], return_list=True)


class GroupNormGradient(GroupNormOp):
    """The gradient of `GroupNorm` for its three inputs.

    With ``relu``, ``gy`` is taken as 0 where ``y`` is not positive, which is found by computing y again.
    """

    __props__ = ("eps", "groups", "relu", "image_layout")
    image_inputs = (0, 1)

    def __init__(self, eps: float, groups: int, relu: bool = False, layout: str = "NCHW"):
        self.eps, self.groups, self.relu, self.image_layout = eps, groups, relu, layout

    def rectified(self) -> GroupNormGradient:
        """Return the same Op for a result that is rectified."""
        return GroupNormGradient(self.eps, self.groups, True, self.layout)

    def make_node(self, gy, x, gamma, beta, mean, inv_std):
        x = float_tensor("x", x, (4,))
        gy = float_tensor("gy", gy, (4,), x.type.dtype)
        vectors = self.parameters(x, gamma=gamma, beta=beta)
        statistics = [
            float_tensor(name, value, (2,), x.type.dtype)
            for name, value in (("mean", mean), ("inv_std", inv_std))
        ]
        shape, channels = list(x.type.shape), self.channels(x, *vectors)
        shape[channel_axis(self.layout, 4)] = channels
        outputs = [TensorType(x.type.dtype, s)() for s in (shape, (channels,), (channels,))]
        return Apply(self, [gy, x, *vectors, *statistics], outputs)

    def output_shapes(self, node, shapes):
        return [shapes[1], shapes[2], shapes[2]]

    def kernel(self, provider, node):
        return provider.group_norm_gradient(self.groups, self.relu, self.layout)

    def check(self, gy, x, gamma, beta, mean, inv_std):
        self.check_arrays(x, gamma, beta)
        same_shape("x and the gradient of y", x, gy)
        for statistic in (mean, inv_std):
            if statistic.shape != (len(x), self.groups):
                raise ValueError(
                    f"one number a group has shape {(len(x), self.groups)}, not {statistic.shape}"
                )

    def connection_pattern(self, node):
        return [[True] * 3] * 4 + [[False] * 3] * 2

    def pullback(self, inputs, outputs, cotangents):
        """Differentiate the formula: the statistics follow from x, and have no derivatives of their own."""
        found = partial_derivatives(self.formula, inputs[:4], cotangents)
        return [*found, disconnected_type(), disconnected_type()]

    def formula(self, gy: Any, x: Any, gamma: Any, beta: Any) -> list[Any]:
        """Return the three gradients by elementwise Ops and sums."""
        order = (0, 1, 2, 3) if self.layout == "NCHW" else (0, 3, 1, 2)
        back = [order.index(axis) for axis in range(4)]
        gy, x = gy.dimshuffle(order), x.dimshuffle(order)
        n_images, channels, height, width = lengths("NCHW", tuple(x.shape))
        parts = (n_images, self.groups, channels // self.groups, height * width)
        x, g = x.reshape(parts), gy.reshape(parts)
        gamma, beta = (v.reshape(parts[1:3]).dimshuffle("x", 0, 1, "x") for v in (gamma, beta))
        centred = x - x.mean(axis=(2, 3), keepdims=True)
        variance = pt.sqr(centred).mean(axis=(2, 3), keepdims=True)
        inv_std = 1 / pt.sqrt(variance + constant(self.eps, variance))
        h = centred * inv_std
        if self.relu:
            g = pt.switch(gamma * h + beta > 0, g, constant(0, g))
        slopes = g * gamma
        product = (slopes * h).mean(axis=(2, 3), keepdims=True)
        gx = inv_std * (slopes - slopes.mean(axis=(2, 3), keepdims=True) - h * product)
        sums = [v.sum(axis=(0, 3)).reshape((channels,)) for v in (g * h, g)]
        return [gx.reshape((n_images, channels, height, width)).dimshuffle(back), *sums]
