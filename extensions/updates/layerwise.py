"""Rules with a rate for each layer: LARS and LAMB, for batches of thousands of rows.

gradient or Adam's step, and the norms of it and of the parameter -> a step as long as the layer allows

A norm of each parameter needs all of its elements, so every rank updates all. The docstring of
``synk.extensions.updates`` says what all rules share; import them from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytensor.tensor as pt

from synk.extensions.gradients import norm_of
from synk.extensions.updates.adam import corrected, count_and_rate
from synk.extensions.updates.parts import (
    Updates,
    check_decays,
    check_scalars,
    from_gradient,
    is_weight,
    scalars,
    state_like,
)


def lars(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any,
    *,
    momentum: Any = 0.9,
    weight_decay: Any = 0.0,
    trust: Any = 0.001,
    decays: Callable[[Any], bool] = is_weight,
) -> Updates:
    """Return momentum with a rate for each weight, by the norms of the weight and of its gradient.

    Each step does::

        r  = trust * |p| / (|g| + weight_decay * |p|)
        v := momentum * v + learning_rate * r * (g + weight_decay * p)
        p := p - v

    ``r`` is 1 where a norm is 0. Biases, and scales and shifts of normalisation, have ``r`` of 1, and do not
    decay.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    momentum : scalar
        In ``[0, 1)``.
    weight_decay : scalar
    trust : scalar
        The share of a weight's norm by which a step of rate 1 moves it.
    decays : callable
        ``decays(param)`` says whether a parameter is a weight; by default those of two axes or more.

    Returns
    -------
    grad_updates, param_updates, flat_gradient

    Raises
    ------
    TypeError, ValueError
        If a parameter is no shared tensor of floats, the loss does not depend on it, or an option is not a
        scalar, or a decay rate outside ``[0, 1)``.

    See Also
    --------
    synk.extensions.schedules.warm_up : a rate for its first steps.

    References
    ----------
    You, Gitman and Ginsburg (2017), arXiv:1708.03888, algorithm 1.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array([[3.0, 4.0]]), name="w")
    >>> step = train.make_train_function(
    ...     (w[0, 0] * x).mean(), [w], [x], updates.lars, learning_rate=1.0, trust=0.1
    ... )
    >>> loss = step([10.0, 30.0])  # of any gradient, a tenth of the norm of w
    >>> print(w.get_value().round(4))
    [[2.5 4. ]]
    """
    check_decays(momentum=momentum)
    check_scalars(learning_rate=learning_rate, weight_decay=weight_decay)

    def step(p: Any, g: Any, rate: Any, momentum: Any, decay: Any, trust: Any) -> list:
        v = state_like(p, "velocity")
        if decays(p):
            size, slope = norm_of(p), norm_of(g)
            ratio = _ratio(p.dtype, trust * size, slope + decay * size, size, slope)
            new_v = momentum * v + rate * ratio * (g + decay * p)
        else:
            new_v = momentum * v + rate * g
        return [(v, new_v), (p, p - new_v)]

    options = {"rate": learning_rate, "momentum": momentum, "decay": weight_decay, "trust": trust}
    return from_gradient(loss, params, step, **options)


def lamb(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.001,
    *,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-6,
    weight_decay: Any = 0.01,
    decays: Callable[[Any], bool] = is_weight,
) -> Updates:
    """Return Adam's steps with decay, each weight's as long as the weight.

    Each step does ``t := t + 1``, ``m := beta1 * m + (1 - beta1) * g``,
    ``v := beta2 * v + (1 - beta2) * g**2``, ``u = m' / (sqrt(v') + epsilon) + weight_decay * p`` and
    ``p := p - learning_rate * |p| / |u| * u``, where ``m' = m / (1 - beta1**t)`` and
    ``v' = v / (1 - beta2**t)``. ``|p| / |u|`` is 1 where a norm is 0.
    Biases, and scales and shifts of normalisation, take Adam's steps, without decay.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    beta1, beta2 : scalar
        Decay rates of the mean gradient and of its mean square, in ``[0, 1)``.
    epsilon : scalar
        Keeps the divisor from 0.
    weight_decay : scalar
    decays : callable
        ``decays(param)`` says whether a parameter is a weight; by default those of two axes or more.

    Returns
    -------
    grad_updates, param_updates, flat_gradient

    Raises
    ------
    TypeError, ValueError
        If a parameter is no shared tensor of floats, the loss does not depend on it, or an option is not a
        scalar, or a decay rate outside ``[0, 1)``.

    See Also
    --------
    synk.extensions.schedules.polynomial : the rate of the paper.

    References
    ----------
    You and others (2019), arXiv:1904.00962, algorithm 2, with the identity for phi.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array([[3.0, 4.0]]), name="w")
    >>> step = train.make_train_function((w.sum() * x).mean(), [w], [x], updates.lamb, learning_rate=0.1)
    >>> loss = step([1.0, 3.0])  # towards about (1, 1), a tenth of the norm of w
    >>> print(w.get_value().round(3))
    [[2.648 3.645]]
    """
    check_scalars(learning_rate=learning_rate, weight_decay=weight_decay)
    t, new_t, mean_scale = count_and_rate(1, beta1, beta2, epsilon)
    square_scale = pt.sqrt(corrected(1, beta2, new_t))

    def step(p: Any, g: Any) -> list:
        rate, decay, small = scalars(p.dtype, learning_rate, weight_decay, epsilon)
        keep1, take1, keep2, take2 = scalars(p.dtype, beta1, 1 - beta1, beta2, 1 - beta2)
        of_mean, of_root = scalars(p.dtype, mean_scale, square_scale)
        m, v = state_like(p, "mean"), state_like(p, "squares")
        new_m, new_v = keep1 * m + take1 * g, keep2 * v + take2 * pt.sqr(g)
        pairs = [(m, new_m), (v, new_v)]
        u = of_mean * new_m / (of_root * pt.sqrt(new_v) + small)
        if decays(p):
            u = u + decay * p
            size, length = norm_of(p), norm_of(u)
            rate = rate * _ratio(p.dtype, size, length, size, length)
        return [*pairs, (p, p - rate * u)]

    return from_gradient(loss, params, step, common=[(t, new_t)])


def _ratio(dtype: str, above: Any, below: Any, *norms: Any) -> Any:
    """Return a quotient; 1 where one of the norms is 0."""
    usable = pt.gt(norms[0], 0) & pt.gt(norms[1], 0)
    quotient = above / pt.switch(usable, below, pt.ones_like(below))
    return pt.cast(pt.switch(usable, quotient, pt.ones_like(quotient)), dtype)
