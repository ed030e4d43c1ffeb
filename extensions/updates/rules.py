"""Rules of gradient descent, momentum and adaptive rates; see `synk.extensions.updates`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytensor.tensor as pt

from synk.extensions.gradients import listed
from synk.extensions.updates.parts import (
    Updates,
    check_common,
    check_decays,
    check_last,
    from_gradient,
    scalars,
    state_like,
)


def sgd(loss: Any, params: Iterable[Any], learning_rate: Any) -> Updates:
    """Return stochastic gradient descent.

    Each step does ``p := p - learning_rate * g``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.

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
    Robbins and Monro (1951), doi:10.1214/aoms/1177729586.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.sgd, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.6
    """

    def step(p: Any, g: Any, learning_rate: Any) -> list:
        return [(p, p - learning_rate * g)]

    return from_gradient(loss, params, step, learning_rate=learning_rate)


def apply_momentum(updates: Updates, params: Iterable[Any], momentum: Any = 0.9) -> Updates:
    """Give the steps of any rule a decaying velocity.

    Where the rule does ``p := p + s``, each step does ``v := momentum * v + s`` then ``p := p + v``.

    Parameters
    ----------
    updates : Updates
        As a rule returns them.
    params : shared variable, or iterable of them
        Those that get a velocity.
    momentum : scalar

    Returns
    -------
    grad_updates, param_updates, flat_gradient

    Raises
    ------
    ValueError
        A parameter has no update.

    See Also
    --------
    synk.extensions.updates.apply_nesterov_momentum : the other kind.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> def rule(loss, params, learning_rate):
    ...     return updates.apply_momentum(updates.sgd(loss, params, learning_rate), params)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.42
    """
    return _with_velocity(updates, params, momentum, look_ahead=False)


def apply_nesterov_momentum(updates: Updates, params: Iterable[Any], momentum: Any = 0.9) -> Updates:
    """Give the steps of any rule a decaying velocity, and look ahead along it.

    Where the rule does ``p := p + s``, each step does ``v := momentum * v + s`` then
    ``p := p + momentum * v + s``. The parameters held are thus those at the point looked ahead to,
    where the next gradient is wanted.

    Parameters
    ----------
    updates : Updates
        As a rule returns them.
    params : shared variable, or iterable of them
        Those that get a velocity.
    momentum : scalar
        In ``[0, 1)``.

    Returns
    -------
    grad_updates, param_updates, flat_gradient

    Raises
    ------
    ValueError
        A parameter has no update.

    See Also
    --------
    synk.extensions.updates.apply_momentum : the other kind.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> def rule(loss, params, learning_rate):
    ...     return updates.apply_nesterov_momentum(updates.sgd(loss, params, learning_rate), params)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.078
    """
    return _with_velocity(updates, params, momentum, look_ahead=True)


def _with_velocity(updates: Updates, params: Iterable[Any], momentum: Any, look_ahead: bool) -> Updates:
    check_decays(momentum=momentum)
    check_common(updates, "momentum")
    check_last(updates, "momentum", "accumulated", "averaged")
    new_values: dict[Any, Any] = dict(updates.param_updates)
    for p in listed(params):
        if p not in new_values:
            raise ValueError(f"parameter '{p}' has no update to give momentum to; pass params of the rule")
        [decay] = scalars(p.dtype, momentum)
        velocity = state_like(p, "velocity")
        s = new_values[p] - p
        new_velocity = decay * velocity + s
        new_values[velocity] = new_velocity
        new_values[p] = p + (decay * new_velocity + s if look_ahead else new_velocity)
    return updates._replace(param_updates=list(new_values.items()))


def momentum(loss: Any, params: Iterable[Any], learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Return gradient descent with a decaying velocity.

    Each step does ``v := momentum * v - learning_rate * g`` then ``p := p + v``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    momentum : scalar
        Decay rate of the velocity, in ``[0, 1)``.

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
    Polyak (1964), doi:10.1016/0041-5553(64)90137-5.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.momentum, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.42
    """
    params = listed(params)
    return apply_momentum(sgd(loss, params, learning_rate), params, momentum)


def nesterov_momentum(loss: Any, params: Iterable[Any], learning_rate: Any, momentum: Any = 0.9) -> Updates:
    """Return gradient descent with a velocity along which it looks ahead.

    Each step does ``v := momentum * v - learning_rate * g`` then
    ``p := p + momentum * v - learning_rate * g``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    momentum : scalar
        Decay rate of the velocity, in ``[0, 1)``.

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
    Sutskever, Martens, Dahl and Hinton (2013), "On the importance of initialization and momentum in
    deep learning", ICML; rearranged so that the gradient is taken where the parameters are held,
    as in Bengio, Boulanger-Lewandowski and Pascanu (2012), arXiv:1212.0901.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.nesterov_momentum
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.078
    """
    params = listed(params)
    return apply_nesterov_momentum(sgd(loss, params, learning_rate), params, momentum)


def adagrad(loss: Any, params: Iterable[Any], learning_rate: Any = 1.0, epsilon: Any = 1e-6) -> Updates:
    """Return steps that shrink with all squared gradients so far.

    Each step does ``a := a + g**2`` then ``p := p - learning_rate * g / sqrt(a + epsilon)``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
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
    Duchi, Hazan and Singer (2011), "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 12:2121-2159.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.adagrad, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.8293
    """

    def step(p: Any, g: Any, learning_rate: Any, epsilon: Any) -> list:
        squares = state_like(p, "squares")
        new_squares = squares + pt.sqr(g)
        return [(squares, new_squares), (p, p - learning_rate * g / pt.sqrt(new_squares + epsilon))]

    return from_gradient(loss, params, step, learning_rate=learning_rate, epsilon=epsilon)


def rmsprop(
    loss: Any, params: Iterable[Any], learning_rate: Any = 1.0, rho: Any = 0.9, epsilon: Any = 1e-6
) -> Updates:
    """Return steps divided by the root of a moving mean of squared gradients.

    Each step does ``a := rho * a + (1 - rho) * g**2`` then
    ``p := p - learning_rate * g / sqrt(a + epsilon)``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    rho : scalar
        Decay rate of the mean of squared gradients, in ``[0, 1)``.
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
    Tieleman and Hinton (2012), Neural Networks for Machine Learning, lecture 6.5, Coursera.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.rmsprop, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.4544
    """
    check_decays(rho=rho)

    def step(p: Any, g: Any, learning_rate: Any, rho: Any, rest: Any, epsilon: Any) -> list:
        squares = state_like(p, "squares")
        new_squares = rho * squares + rest * pt.sqr(g)
        return [(squares, new_squares), (p, p - learning_rate * g / pt.sqrt(new_squares + epsilon))]

    return from_gradient(
        loss, params, step, learning_rate=learning_rate, rho=rho, rest=1 - rho, epsilon=epsilon
    )


def adadelta(
    loss: Any, params: Iterable[Any], learning_rate: Any = 1.0, rho: Any = 0.95, epsilon: Any = 1e-6
) -> Updates:
    """Return steps whose size follows that of the steps before.

    Each step does ``a := rho * a + (1 - rho) * g**2``, ``s := g * sqrt(d + epsilon) / sqrt(a + epsilon)``,
    ``d := rho * d + (1 - rho) * s**2`` and ``p := p - learning_rate * s``.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options.
    rho : scalar
        Decay rate of the mean of squared gradients, in ``[0, 1)``.
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
    Zeiler (2012), arXiv:1212.5701; the learning rate, there 1, is an addition.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.adadelta)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.991
    """
    check_decays(rho=rho)

    def step(p: Any, g: Any, learning_rate: Any, rho: Any, rest: Any, epsilon: Any) -> list:
        squares, deltas = state_like(p, "squares"), state_like(p, "deltas")
        new_squares = rho * squares + rest * pt.sqr(g)
        s = g * pt.sqrt(deltas + epsilon) / pt.sqrt(new_squares + epsilon)
        new_deltas = rho * deltas + rest * pt.sqr(s)
        return [(squares, new_squares), (deltas, new_deltas), (p, p - learning_rate * s)]

    return from_gradient(
        loss, params, step, learning_rate=learning_rate, rho=rho, rest=1 - rho, epsilon=epsilon
    )
