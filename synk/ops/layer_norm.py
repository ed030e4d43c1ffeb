"""Layer normalisation: each row by its own mean and variance.

layer_norm -> LayerNorm(x, gamma, beta) -> y, mean, inv_std
its gradient: LayerNormGradient(gy, x, gamma, mean, inv_std) -> gx, ggamma, gbeta
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.type import TensorType

from synk.compile.tables import Width
from synk.ops.checks import common_length, float_tensor, named, same_shape
from synk.ops.composed import partial_derivatives
from synk.ops.kernel_op import KernelOp
from synk.ops.kernels.choose import norm_kernels
from synk.ops.kernels.plain_norm import PlainNorm


@named
def layer_norm(x: Any, gamma: Any, beta: Any, *, eps: float = 1e-5) -> Any:
    """Normalise over the last axes to mean 0 and variance 1, then scale and shift.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta``, where mean and (biased) variance are taken over the
    last ``gamma.ndim`` axes.

    Parameters
    ----------
    x : tensor of float32 or float64
    gamma, beta : tensor
        In the dtype of ``x`` and the shape of its last axes, one axis or more.
    eps : float, default 1e-5
        Added to variances.

    Returns
    -------
    tensor
        Shape and dtype of ``x``.

    References
    ----------
    Ba, Kiros and Hinton (2016), arXiv:1607.06450.

    Examples
    --------
    >>> x = pt.matrix("x")
    >>> f = synk.function([x], ops.layer_norm(x, pt.ones(2), pt.zeros(2)))
    >>> f([[1.0, 3.0], [2.0, 6.0]]).round(3).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    x = float_tensor("x", x)
    gamma = float_tensor("gamma", gamma, dtype=x.type.dtype)
    return LayerNorm(eps, gamma.type.ndim)(x, gamma, beta)[0]


class LayerNorm(KernelOp):
    """Normalise over the last axes, scale and shift.

    Outputs are ``y``; the mean of each row, and one over the root of its biased variance plus ``eps``, in the
    shape of the leading axes.

    Parameters
    ----------
    eps : float
        Added to variances, positive.
    n_axes : int
        How many of the last axes make a row, at least 1.
    """

    __props__ = ("eps", "n_axes")
    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    width = Width(takes=(0,), requires=(0,), gives=(0,))

    def __init__(self, eps: float, n_axes: int):
        if not eps > 0:
            raise ValueError(f"eps={eps!r} must be positive: a constant row has variance 0")
        if n_axes < 1:
            raise ValueError(f"n_axes={n_axes!r} must be 1 or more: give gamma the shape of x's last axes")
        self.eps, self.n_axes = float(eps), int(n_axes)

    def make_node(self, x, gamma, beta):
        x, (gamma, beta), last = _inputs(self.n_axes, x, gamma=gamma, beta=beta)
        leading = x.type.shape[: x.type.ndim - self.n_axes]
        outputs = [TensorType(x.type.dtype, shape) for shape in ((*leading, *last), leading, leading)]
        return Apply(self, [x, gamma, beta], [kind() for kind in outputs])

    def output_shapes(self, node, shapes):
        leading = shapes[0][: len(shapes[0]) - self.n_axes]
        return [shapes[0], leading, leading]

    def kernel(self, provider, node):
        return provider.layer_norm(self.eps, self.n_axes)

    def check(self, x, *parameters):
        check_arrays(self.n_axes, x, *parameters)

    def pullback(self, inputs, outputs, cotangents):
        gy, *others = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError(
                "the statistics of layer_norm are not differentiated; compute them by x.mean and x.var"
            )
        x, gamma, _ = inputs
        return LayerNormGradient(self.n_axes, self.eps)(gy, x, gamma, *outputs[1:], return_list=True)


class LayerNormGradient(KernelOp):
    """The gradient of `LayerNorm` for its three inputs; ``eps`` is there for derivatives of this gradient."""

    __props__ = ("n_axes", "eps")
    provider, plain = staticmethod(norm_kernels), PlainNorm(np)
    width = Width(takes=(0, 1), requires=(0, 1), gives=(0,))

    def __init__(self, n_axes: int, eps: float):
        self.n_axes, self.eps = int(n_axes), float(eps)

    def make_node(self, gy, x, gamma, mean, inv_std):
        x, (gamma,), last = _inputs(self.n_axes, x, gamma=gamma)
        dtype, ndim = x.type.dtype, x.type.ndim
        gy = float_tensor("gy", gy, (ndim,), dtype)
        mean, inv_std = (
            float_tensor(name, value, (ndim - self.n_axes,), dtype)
            for name, value in (("mean", mean), ("inv_std", inv_std))
        )
        shape = (*x.type.shape[: ndim - self.n_axes], *last)
        outputs = [TensorType(dtype, given) for given in (shape, last, last)]
        return Apply(self, [gy, x, gamma, mean, inv_std], [kind() for kind in outputs])

    def output_shapes(self, node, shapes):
        return [shapes[1], shapes[2], shapes[2]]

    def kernel(self, provider, node):
        return provider.layer_norm_gradient(self.n_axes)

    def check(self, gy, x, gamma, mean, inv_std):
        check_arrays(self.n_axes, x, gamma)
        same_shape("x and the gradient of y", x, gy)
        leading = x.shape[: x.ndim - self.n_axes]
        for rows in (mean, inv_std):
            if rows.shape != leading:
                raise ValueError(f"one number a row has shape {leading}, not {rows.shape}")

    def connection_pattern(self, node):
        return [[True] * 3] * 3 + [[False] * 3] * 2

    def pullback(self, inputs, outputs, cotangents):
        """Differentiate the formula: the statistics follow from x, and have no derivatives of their own."""
        found = partial_derivatives(self.formula, inputs[:3], cotangents)
        return [*found, disconnected_type(), disconnected_type()]

    def formula(self, gy: Any, x: Any, gamma: Any) -> list[Any]:
        """Return the three gradients by elementwise Ops and sums."""
        first = x.type.ndim - self.n_axes
        lead, last = list(range(first)), list(range(first, x.type.ndim))
        centred = x - x.mean(axis=last, keepdims=True)
        variance = pt.sqr(centred).mean(axis=last, keepdims=True)
        inv_std = 1 / pt.sqrt(variance + np.asarray(self.eps, x.type.dtype))
        h, slopes = centred * inv_std, gy * gamma
        product = (slopes * h).mean(axis=last, keepdims=True)
        gx = inv_std * (slopes - slopes.mean(axis=last, keepdims=True) - h * product)
        return [gx, (gy * h).sum(axis=lead), gy.sum(axis=lead)]


def _inputs(n_axes: int, x: Any, **parameters: Any) -> tuple[Any, list[Any], tuple[int | None, ...]]:
    """Return x and its parameters as variables that fit each other, and the lengths of x's last axes."""
    x = float_tensor("x", x)
    if x.type.ndim < n_axes:
        raise ValueError(f"gamma has {n_axes} axes, x {x.type.ndim}: x must have as many or more")
    made = [float_tensor(name, value, (n_axes,), x.type.dtype) for name, value in parameters.items()]
    static = [x.type.shape[x.type.ndim - n_axes :], *(v.type.shape for v in made)]
    what = "the lengths of the last axes of x and of its parameters"
    return x, made, tuple([common_length(what, *lengths) for lengths in zip(*static, strict=True)])


def check_arrays(n_axes: int, x: Any, *parameters: Any) -> None:
    """Raise ValueError unless the parameters have the shape of x's last axes; a graph may not know it."""
    last = x.shape[x.ndim - n_axes :]
    for parameter in parameters:
        if parameter.shape != last:
            raise ValueError(
                f"a parameter of shape {parameter.shape} does not fit the last axes of x, {last}"
            )
