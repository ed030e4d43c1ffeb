"""Adam and its relatives: steps along a moving mean of gradients, scaled by a moving mean of squares.

Moving means that start from zero are too small at first: after ``t`` steps they are short by the
factor ``1 - beta**t``, and the rules divide by it. The docstring of ``synk.extensions.updates`` says
what all rules share; import them from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.extensions.updates.parts import (
    Updates,
    check_decays,
    check_scalars,
    from_gradient,
    scalars,
    state_like,
)


def adam(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """Return steps along the mean gradient, scaled by the root of its mean square.

    Each step does ``t := t + 1``, ``m := beta1 * m + (1 - beta1) * g``,
    ``v := beta2 * v + (1 - beta2) * g**2`` and
    ``p := p - learning_rate * m' / (sqrt(v') + epsilon)``,
    where ``m' = m / (1 - beta1**t)`` and ``v' = v / (1 - beta2**t)``.

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
    synk.extensions.train.make_train_function : makes a step of the rule.

    Notes
    -----
    This is Algorithm 1 of the paper. Lasagne has its "more efficient" form, which in effect adds
    ``epsilon / sqrt(1 - beta2**t)``; the two differ where gradients are as small as that.

    References
    ----------
    Kingma and Ba (2014), arXiv:1412.6980.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.adam, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.8
    """
    return _adam(loss, params, learning_rate, beta1, beta2, epsilon)


def amsgrad(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """Return Adam's steps, with a scale that never shrinks.

    Each step is that of `adam`, with ``u := max(u, v)`` in the place of ``v`` in ``v'``.

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
    synk.extensions.train.make_train_function : makes a step of the rule.

    References
    ----------
    Reddi, Kale and Kumar (2018), arXiv:1904.09237; the correction for zero starts is an addition.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.amsgrad, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.8
    """
    return _adam(loss, params, learning_rate, beta1, beta2, epsilon, largest=True)


def adamw(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.001,
    *,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
    weight_decay: Any = 0.01,
) -> Updates:
    """Return Adam's steps, and let the parameters decay beside them.

    Each step is that of `adam` from ``p - learning_rate * weight_decay * p``; in the loss, a penalty
    on large parameters would be scaled like any gradient.

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
        The share of a parameter that it loses in a step, times the learning rate.

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
    synk.extensions.train.make_train_function : makes a step of the rule.

    References
    ----------
    Loshchilov and Hutter (2017), arXiv:1711.05101.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.adamw, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.7981
    """
    check_scalars(weight_decay=weight_decay)
    return _adam(loss, params, learning_rate, beta1, beta2, epsilon, weight_decay=weight_decay)


def _adam(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    *,
    weight_decay: Any = 0.0,
    largest: bool = False,
) -> Updates:
    t, new_t, mean_rate = count_and_rate(learning_rate, beta1, beta2, epsilon)
    square_scale = pt.sqrt(corrected(1, beta2, new_t))

    def step(p: Any, g: Any) -> list:
        rate, scale, small = scalars(p.dtype, mean_rate, square_scale, epsilon)
        keep1, take1, keep2, take2 = scalars(p.dtype, beta1, 1 - beta1, beta2, 1 - beta2)
        [shrink] = scalars(p.dtype, learning_rate * weight_decay)
        m, v = state_like(p, "mean"), state_like(p, "squares")
        new_m = keep1 * m + take1 * g
        new_v = keep2 * v + take2 * pt.sqr(g)
        pairs, bound = [(m, new_m), (v, new_v)], new_v
        if largest:
            u = state_like(p, "largest")
            bound = pt.maximum(u, new_v)
            pairs.append((u, bound))
        return [*pairs, (p, p - shrink * p - rate * new_m / (scale * pt.sqrt(bound) + small))]

    return from_gradient(loss, params, step, common=[(t, new_t)])


def adamax(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.002,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: Any = 1e-8,
) -> Updates:
    """Return Adam's steps, scaled by a decaying maximum instead of a root mean square.

    Each step does ``t := t + 1``, ``m := beta1 * m + (1 - beta1) * g``, ``u := max(beta2 * u, abs(g))``
    and ``p := p - learning_rate * m' / (u + epsilon)``, where ``m' = m / (1 - beta1**t)``.

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
    synk.extensions.train.make_train_function : makes a step of the rule.

    References
    ----------
    Kingma and Ba (2014), arXiv:1412.6980, section 7.1; epsilon is an addition.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.adamax, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.8
    """
    t, new_t, mean_rate = count_and_rate(learning_rate, beta1, beta2, epsilon)

    def step(p: Any, g: Any) -> list:
        rate, small = scalars(p.dtype, mean_rate, epsilon)
        keep1, take1, keep2 = scalars(p.dtype, beta1, 1 - beta1, beta2)
        m, u = state_like(p, "mean"), state_like(p, "largest")
        new_m = keep1 * m + take1 * g
        new_u = pt.maximum(keep2 * u, abs(g))
        return [(m, new_m), (u, new_u), (p, p - rate * new_m / (new_u + small))]

    return from_gradient(loss, params, step, common=[(t, new_t)])


def count_and_rate(learning_rate: Any, beta1: Any, beta2: Any, epsilon: Any) -> tuple[Any, Any, Any]:
    """Check the options; return the step count, its next value, and the rate for the mean gradient.

    The rate is ``learning_rate / (1 - beta1**t)``, which corrects the mean for its start from zero.
    """
    check_scalars(learning_rate=learning_rate, epsilon=epsilon)
    check_decays(beta1=beta1, beta2=beta2)
    t = pytensor.shared(np.asarray(0, "int64"), name="t")  # 64 bits never stop counting
    new_t = t + 1
    return t, new_t, corrected(learning_rate, beta1, new_t)


def corrected(factor: Any, beta: Any, t: Any) -> Any:
    """Return ``factor / (1 - beta**t)``.

    It is computed in float64: with beta near one, float32 would lose half of its digits.
    """
    factor, beta, t = scalars("float64", factor, beta, t)
    return factor / (1 - beta**t)
