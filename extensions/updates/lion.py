"""Steps along the sign of a mean gradient; see `synk.extensions.updates`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytensor.tensor as pt

from synk.extensions.updates.parts import (
    Updates,
    check_decays,
    check_scalars,
    from_gradient,
    is_weight,
    state_like,
)


def lion(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = 0.0001,
    *,
    beta1: Any = 0.9,
    beta2: Any = 0.99,
    weight_decay: Any = 0.0,
    decays: Callable[[Any], bool] = is_weight,
) -> Updates:
    """Return steps of equal length along the sign of a mean gradient.

    Each step does ``c = beta1 * m + (1 - beta1) * g``,
    ``p := p - learning_rate * (sign(c) + weight_decay * p)`` and ``m := beta2 * m + (1 - beta2) * g``.
    Biases, and scales and shifts of normalisation, do not decay.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar
        A number, a shared scalar, or a 0-d expression of shared variables; so are the other options. A third
        to a tenth of what Adam takes.
    beta1, beta2 : scalar
        Weight of the mean in the step, and its decay rate, in ``[0, 1)``.
    weight_decay : scalar
        With another one than 0, weights and others follow two rules, and every rank updates all of them.
    decays : callable
        ``decays(param)`` says whether a parameter decays; by default those of two axes or more.

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
    Chen and others (2023), arXiv:2302.06675, algorithm 2.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], updates.lion, learning_rate=0.1)
    >>> for _ in range(2):  # the gradient is 2, the mean of x
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.8
    """
    check_decays(beta1=beta1, beta2=beta2)
    check_scalars(learning_rate=learning_rate, weight_decay=weight_decay)
    none = isinstance(weight_decay, int | float) and weight_decay == 0

    def step(p: Any, g: Any, rate: Any, mix: Any, take: Any, keep: Any, rest: Any, decay: Any) -> list:
        m = state_like(p, "mean")
        move = pt.sign(mix * m + take * g)
        if decays(p) and not none:
            move = move + decay * p
        return [(m, keep * m + rest * g), (p, p - rate * move)]

    options = {"mix": beta1, "take": 1 - beta1, "keep": beta2, "rest": 1 - beta2}
    return from_gradient(loss, params, step, rate=learning_rate, **options, decay=weight_decay)
