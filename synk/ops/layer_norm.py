"""Layer normalisation: each row by its own mean and variance.

layer_norm -> LayerNorm(x, gamma, beta) -> y, mean, inv_std
its gradient: LayerNormGradient(gy, x, gamma, mean, inv_std) -> gx, ggamma, gbeta
"""

from functools import partial
from typing import Any

import numpy as np
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.type import TensorType

from synk.compile import array_funcify
from synk.kernels.choose import norm_kernels
from synk.ops.checks import common_length, float_tensor, looked_at, refuse_second, same_shape


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
    """
    x = float_tensor("x", x)
    gamma = float_tensor("gamma", gamma, dtype=x.type.dtype)
    return LayerNorm(eps, gamma.type.ndim)(x, gamma, beta)[0]


class LayerNorm(Op):
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

    def infer_shape(self, *arguments):
        shapes = arguments[-1]  # before PyTensor 3.1 the graph stands in front
        leading = shapes[0][: len(shapes[0]) - self.n_axes]
        return [shapes[0], leading, leading]

    def perform(self, node, inputs, output_storage):
        x, gamma, beta = inputs
        check_arrays(self.n_axes, x, gamma, beta)
        wide, axes = x.astype("float64"), tuple(range(x.ndim - self.n_axes, x.ndim))
        with np.errstate(divide="ignore", invalid="ignore"):
            n = np.float64(gamma.size)
            mean = wide.sum(axis=axes, keepdims=True) / n
            inv_std = 1 / np.sqrt(((wide - mean) ** 2).sum(axis=axes, keepdims=True) / n + self.eps)
        y = (wide - mean) * inv_std * gamma + beta
        for cell, value in zip(output_storage, (y, mean.squeeze(axes), inv_std.squeeze(axes)), strict=True):
            cell[0] = np.asarray(value.astype(x.dtype))

    def pullback(self, inputs, outputs, cotangents):
        gy, *others = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError(
                "the statistics of layer_norm are not differentiated; compute them by x.mean and x.var"
            )
        x, gamma, _ = inputs
        return LayerNormGradient(self.n_axes)(gy, x, gamma, *outputs[1:], return_list=True)


class LayerNormGradient(Op):
    """The gradient of `LayerNorm` for its three inputs."""

    __props__ = ("n_axes",)

    def __init__(self, n_axes: int):
        self.n_axes = int(n_axes)

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

    def infer_shape(self, *arguments):
        shapes = arguments[-1]
        return [shapes[1], shapes[2], shapes[2]]

    def perform(self, node, inputs, output_storage):
        gy, x, gamma, mean, inv_std = (value.astype("float64") for value in inputs)
        check_gradient(self.n_axes, gy, x, gamma, mean, inv_std)
        leading, axes = tuple(range(mean.ndim)), tuple(range(mean.ndim, x.ndim))
        unit = (x - np.expand_dims(mean, axes)) * np.expand_dims(inv_std, axes)
        ggamma, gbeta = (gy * unit).sum(axis=leading), gy.sum(axis=leading)
        g, n = gy * gamma, max(1, gamma.size)
        by_mean = g.sum(axis=axes, keepdims=True) / n
        by_deviation = unit * (g * unit).sum(axis=axes, keepdims=True) / n
        gx = (g - by_mean - by_deviation) * np.expand_dims(inv_std, axes)
        for cell, value in zip(output_storage, (gx, ggamma, gbeta), strict=True):
            cell[0] = value.astype(node.outputs[0].type.dtype)

    def pullback(self, inputs, outputs, cotangents):
        refuse_second("layer_norm")


def _inputs(n_axes: int, x: Any, **parameters: Any) -> tuple[Any, list[Any], tuple[int | None, ...]]:
    """Return x, its parameters as variables that fit it, and the lengths of the last axes."""
    x = float_tensor("x", x)
    if x.type.ndim < n_axes:
        raise ValueError(f"gamma has {n_axes} axes, x {x.type.ndim}: x must have as many or more")
    made = [float_tensor(name, value, (n_axes,), x.type.dtype) for name, value in parameters.items()]
    static = [x.type.shape[x.type.ndim - n_axes :], *(v.type.shape for v in made)]
    what = "the lengths of the last axes of x and of its parameters"
    return x, made, tuple([common_length(what, *lengths) for lengths in zip(*static, strict=True)])


def check_arrays(n_axes: int, x: Any, *parameters: Any) -> None:
    """Raise ValueError unless arrays fit each other, whose lengths the graph need not know."""
    last = x.shape[x.ndim - n_axes :]
    for parameter in parameters:
        if parameter.shape != last:
            raise ValueError(
                f"a parameter of shape {parameter.shape} does not fit the last axes of x, {last}"
            )


def check_gradient(n_axes: int, gy: Any, x: Any, gamma: Any, mean: Any, inv_std: Any) -> None:
    """Do so for the inputs of the gradient."""
    check_arrays(n_axes, x, gamma)
    same_shape("x and the gradient of y", x, gy)
    leading = x.shape[: x.ndim - n_axes]
    for rows in (mean, inv_std):
        if rows.shape != leading:
            raise ValueError(f"one number a row has shape {leading}, not {rows.shape}")


@array_funcify.register(LayerNorm)
def layer_norm_entry(op, node, xp):
    """A row at a time, while it is in cache."""
    kernels = norm_kernels(xp, node.inputs[0].type.dtype)
    return looked_at(partial(check_arrays, op.n_axes), kernels.layer_norm(op.eps, op.n_axes))


@array_funcify.register(LayerNormGradient)
def layer_norm_gradient_entry(op, node, xp):
    """The same for the gradient."""
    kernels = norm_kernels(xp, node.inputs[1].type.dtype)
    return looked_at(partial(check_gradient, op.n_axes), kernels.layer_norm_gradient(op.n_axes))
