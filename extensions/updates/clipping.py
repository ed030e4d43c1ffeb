"""Rules whose gradients are kept short, by their norm or element by element.

    rule -> clipped, clipped_by_value -> rule, which reads other gradients of all ranks' rows

Imported as part of ``synk.extensions.updates``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt

from synk.extensions.gradients import global_norm, gradients_in, weight_of
from synk.extensions.updates.parts import Updates, check_common, check_scalars, replaced, scalars


def clipped(rule: Callable[..., Updates], max_norm: Any) -> Callable[..., Updates]:
    """Return an update rule that does what `rule` does, with gradients no longer than `max_norm`.

    In the place of ``g``, the rule reads ``g * min(1, max_norm / norm)``, where ``norm`` is that of all
    parameters' gradients together, over the rows of all slices and ranks: `gradients.global_norm`. Shorter
    gradients keep their bits. A norm of NaN makes all gradients NaN; `synk.check_finite` stops before that.

    Parameters
    ----------
    rule : callable
        As those of this module.
    max_norm : scalar
        Positive.

    Returns
    -------
    callable
        ``rule(loss, params, **options)``.

    See Also
    --------
    synk.extensions.train.make_train_function : makes a step of the rule.

    References
    ----------
    Pascanu, Mikolov and Bengio (2012), arXiv:1211.5063.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.clipped(updates.sgd, max_norm=0.5)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=1.0)
    >>> loss = step([1.0, 3.0])  # the gradient is 2
    >>> print(w.get_value().round(4))
    0.5
    """
    check_scalars(max_norm=max_norm)
    if isinstance(max_norm, int | float | np.number) and not max_norm > 0:
        raise ValueError(f"max_norm={max_norm} is not positive; pass the length that gradients may have")

    def with_clipping(loss: Any, params: Any, **options: Any) -> Updates:
        made = rule(loss, params, **options)
        check_common(made, "clipped")
        weight, norm = weight_of(made.flat_gradient), global_norm(made.flat_gradient)
        [limit] = scalars(norm.dtype, max_norm)
        excess = pt.cast(pt.maximum(1, norm / limit), weight.dtype)
        variables, values = zip(*made.param_updates, strict=True)
        values = replaced(values, {weight: weight * excess}, "clipped")
        return made._replace(param_updates=list(zip(variables, values, strict=True)))

    return with_clipping


def clipped_by_value(rule: Callable[..., Updates], limit: Any) -> Callable[..., Updates]:
    """Return an update rule that does what `rule` does, with every element of the gradient within a limit.

    In the place of ``g``, the rule reads ``min(max(g, -limit), limit)``, of the gradient over the rows of all
    slices and ranks. It changes the direction, which `clipped` keeps; of both, `clipped` comes first.

    Parameters
    ----------
    rule : callable
        As those of this module.
    limit : scalar
        Positive.

    Returns
    -------
    callable
        ``rule(loss, params, **options)``.

    Raises
    ------
    ValueError
        `limit` is no scalar, or not positive.

    References
    ----------
    Mikolov (2012), "Statistical language models based on neural networks", thesis, Brno, section 3.2.2.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array([1.0, 1.0]), name="w")
    >>> rule = updates.clipped_by_value(updates.sgd, 0.5)
    >>> loss = (w[0] * x).mean() + 0.1 * w[1]
    >>> step = train.make_train_function(loss, [w], [x], rule, learning_rate=1.0)
    >>> loss = step([1.0, 3.0])  # the gradient is 2 and 0.1
    >>> print(w.get_value().round(4))
    [0.5 0.9]
    """
    check_scalars(limit=limit)
    if isinstance(limit, int | float | np.number) and not limit > 0:
        raise ValueError(f"limit={limit} is not positive; pass what elements of the gradient may have")

    def within(loss: Any, params: Any, **options: Any) -> Updates:
        made = rule(loss, params, **options)
        check_common(made, "clipped_by_value")
        variables, values = zip(*made.param_updates, strict=True)
        [most] = scalars(made.flat_gradient.dtype, limit)
        inside = {g: pt.clip(g, -most, most) for g in gradients_in(values, made.flat_gradient)}
        values = replaced(values, inside, "clipped_by_value")
        return made._replace(param_updates=list(zip(variables, values, strict=True)))

    return within
