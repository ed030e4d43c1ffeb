"""Rules around rules: weights that decay, and gradients of several calls.

    rule -> decayed, accumulated -> rule

Imported as part of ``synk.extensions.updates``; `averaged`, `clipped` and others have files of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.extensions.gradients import listed, reduced
from synk.extensions.updates.parts import (
    Updates,
    check_common,
    check_last,
    check_scalars,
    is_weight,
    mark_done,
    replaced,
    scalars,
)
from synk.values.checks import checked_count


def decayed(
    rule: Callable[..., Updates], weight_decay: Any, *, decays: Callable[[Any], bool] = is_weight
) -> Callable[..., Updates]:
    """Return an update rule that does what `rule` does, and lets weights decay beside it.

    Each step does ``p := p' - learning_rate * weight_decay * p`` for weights, where ``p'`` is what `rule`
    makes of ``p``. Biases, and scales and shifts of normalisation, stay out of it: a penalty on them keeps no
    function simple. Of `adam` it makes `adamw`, which lets all parameters decay.

    Where some parameters decay and some do not, they follow two rules, and every rank updates all of them;
    ``step.explain()`` says so.

    Parameters
    ----------
    rule : callable
        As those of this module, with an option ``learning_rate``.
    weight_decay : scalar
        The share of a weight that it loses in a step, times the learning rate.
    decays : callable
        ``decays(param)`` says whether a parameter decays; by default those of two axes or more.

    Returns
    -------
    callable
        ``rule(loss, params, **options)``.

    Raises
    ------
    ValueError
        `weight_decay` is no scalar; when the rule is called, it has no learning rate, or `accumulated` or
        `averaged` is within: these belong outside.

    References
    ----------
    Loshchilov and Hutter (2017), arXiv:1711.05101; biases left out as in He and others (2018),
    arXiv:1812.01187, section 3.1.

    Examples
    --------
    >>> x, w, b = pt.vector("x"), pytensor.shared(np.ones((1, 1)), name="w"), pytensor.shared(1.0, name="b")
    >>> rule = updates.decayed(updates.sgd, weight_decay=0.5)
    >>> step = train.make_train_function((w.sum() * x + b).mean(), [w, b], [x], rule, learning_rate=0.1)
    >>> loss = step([1.0, 3.0])  # the gradients are 2 and 1
    >>> print(w.get_value().round(4), b.get_value().round(4))
    [[0.75]] 0.9
    """
    check_scalars(weight_decay=weight_decay)

    def with_decay(loss: Any, params: Any, **options: Any) -> Updates:
        params = listed(params)
        rate = options.get("learning_rate", _default_rate(rule))
        if rate is None:
            raise ValueError("decayed finds no learning_rate of its rule; pass it by name, learning_rate=...")
        made = rule(loss, params, **options)
        check_common(made, "decayed")
        check_last(made, "decayed", "accumulated", "averaged")
        shrinking = {param for param in params if decays(param)}
        pairs = []
        for variable, new in made.param_updates:
            if variable in shrinking:
                [shrink] = scalars(variable.dtype, rate * weight_decay)
                new = new - shrink * variable
            pairs.append((variable, new))
        return made._replace(param_updates=pairs)

    return with_decay


def accumulated(rule: Callable[..., Updates], n_calls: int) -> Callable[..., Updates]:
    """Return an update rule that takes one step of `rule` in so many calls, along their mean gradient.

    Between, parameters and the state of the rule stay as they are; the sum of the gradients is part of
    ``step.state``, and so is the number of calls. If all calls have equally many rows, a step is that of one
    call with all of their rows. Other wrappers belong inside: ``accumulated(clipped(adam, 1.0), 4)`` clips
    the mean; a schedule that counts inside counts steps, one outside counts calls.

    Slices of a call, ``num_slices``, are for batches that do not fit into memory; this is for rows that the
    script does not have at once. Ranks add up their gradients in each call, and every rank keeps the sum.

    Parameters
    ----------
    rule : callable
        As those of this module.
    n_calls : int
        Positive.

    Returns
    -------
    callable
        ``rule(loss, params, **options)``.

    Raises
    ------
    TypeError, ValueError
        `n_calls` is no integer, or not positive.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.accumulated(updates.sgd, 2)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> for rows in ([1.0, 3.0], [4.0, 4.0]):  # gradients of 2 and 4
    ...     loss = step(rows)
    ...     print(w.get_value().round(4))
    1.0
    0.7
    """
    n_calls = checked_count("n_calls", n_calls)

    def with_sum(loss: Any, params: Any, **options: Any) -> Updates:
        made = rule(loss, params, **options)
        check_common(made, "accumulated")
        mark_done(made, "accumulated")
        flat = made.flat_gradient
        total = pytensor.shared(np.zeros_like(flat.get_value(borrow=True)), name="gradient_of_calls")
        calls = pytensor.shared(np.asarray(0, "int64"), name="calls")
        so_far, is_last = total + reduced(flat), pt.eq(calls + 1, n_calls)
        variables, values = zip(*made.param_updates, strict=True)
        values = replaced(values, {reduced(flat): so_far}, "accumulated")
        pairs = [
            (variable, pt.switch(is_last, value, variable))
            for variable, value in zip(variables, values, strict=True)
        ]
        pairs.append((total, pt.switch(is_last, pt.zeros_like(so_far), so_far)))
        pairs.append((calls, pt.switch(is_last, pt.zeros_like(calls), calls + 1)))
        return made._replace(param_updates=pairs)

    return with_sum


def _default_rate(rule: Callable[..., Any]) -> Any:
    """Return the learning rate that a rule has by default; None if it has none."""
    parameter = inspect.signature(rule).parameters.get("learning_rate")
    return None if parameter is None or parameter.default is parameter.empty else parameter.default
