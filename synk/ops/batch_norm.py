"""Batch normalisation: the public function, which makes graphs for training and for use.

    batch_norm(train=True)  -> BatchNorm -> y, and the running statistics that follow it
    batch_norm(train=False) -> x * scale + shift, an elementwise graph that fuses with its neighbours
    batch_norm(all_ranks=True) -> the same as the first, of sums over all ranks

The Ops are in ``batch_norm_ops``.
"""

import math
from typing import Any

import numpy as np
import pytensor.tensor as pt

from synk.ops.all_ranks import all_sum
from synk.ops.batch_norm_ops import BatchNorm
from synk.ops.checks import float_tensor

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

    References
    ----------
    Ioffe and Szegedy (2015), arXiv:1502.03167.
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
        # The kernel returns what the gradient needs; the variance follows from it.
        variance = pt.maximum(1 / pt.sqr(inv_std) - constant(eps, inv_std), constant(0, inv_std))
    return y, running_updates(mean, variance, n, running, momentum)


def by_running_statistics(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float) -> Any:
    """Return ``x * scale + shift``: the work on an image is one multiplication and one addition."""
    scale = gamma / pt.sqrt(var + constant(eps, var))
    shift = beta - mean * scale
    pattern = ("x", 0, *("x",) * (x.type.ndim - 2))
    scale, shift = (v.astype(x.type.dtype).dimshuffle(pattern) for v in (scale, shift))
    return x * scale + shift


def over_all_ranks(x: Any, gamma: Any, beta: Any, n: Any, eps: float) -> tuple[Any, Any, Any]:
    """Return y, mean and biased variance by the statistics of all ranks: of ``n`` values a channel."""
    axes = [axis for axis in range(x.type.ndim) if axis != 1]
    pattern = ("x", 0, *("x",) * (x.type.ndim - 2))
    count = n.astype(x.type.dtype)
    mean = all_sum(x.sum(axis=axes)) / count
    centred = x - mean.dimshuffle(pattern)
    variance = all_sum(pt.sqr(centred).sum(axis=axes)) / count
    scale = gamma / pt.sqrt(variance + constant(eps, variance))
    return centred * scale.dimshuffle(pattern) + beta.dimshuffle(pattern), mean, variance


def running_updates(mean: Any, variance: Any, n: Any, running: Any, momentum: float) -> Updates:
    """Return the new running mean and variance, each in its own dtype, of ``n`` values a channel."""
    unbiased = variance * (n / pt.maximum(n - 1, 1)).astype(variance.type.dtype)
    updates = []
    for old, batch in zip(running, (mean, unbiased), strict=True):
        share = constant(momentum, old)
        new = (1 - share) * old + share * batch.astype(old.type.dtype)
        # Statistics of nothing are NaN, which would stay for ever.
        updates.append((old, pt.switch(pt.gt(n, 0), new, old)))
    return updates


def constant(value: float, like: Any) -> Any:
    """Return a constant in the dtype of ``like``: a bare float might widen float32."""
    return pt.constant(np.asarray(value, like.type.dtype))
