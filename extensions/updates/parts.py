"""Parts of update rules: options in the right dtype, state, and the way back from the flat gradient.

A rule states its recurrence for one parameter, as ``step(param, gradient, **options)``, and nothing else:

    loss, params -> flat_gradient -> step, for each parameter -> Updates
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from synk.extensions.gradients import flat_gradient, listed

# What a wrapper has done that another one must not change afterwards.
LATE = {
    "accumulated": "accumulated takes one step in several calls",
    "averaged": "averaged has the averages of other parameters",
}

Pair = tuple[Any, ...]  # (shared variable, new value); of a rank's own steps (..., None)


class Updates(NamedTuple):
    """The result of an update rule: a tuple of three.

    Parameters
    ----------
    grad_updates : list of (flat_gradient, what one slice adds to it, "sum")
        For the gradient function.
    param_updates : list of (variable, new value)
        For the update function, once ``flat_gradient`` is all-reduced; of `local`, (..., None).
    flat_gradient : shared vector

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> made = updates.sgd((w * x).mean(), [w], learning_rate=0.1)
    >>> gradient = synk.function([x], updates=made.grad_updates)
    >>> update = synk.function([], updates=made.param_updates)
    >>> gradient([1.0, 3.0])
    >>> synk.all_reduce(made.flat_gradient, "sum")
    >>> update()
    >>> print(w.get_value().round(4))
    0.8
    """

    grad_updates: list[tuple[Any, Any, str]]  # (flat_gradient, what one slice adds to it, "sum")
    param_updates: list[Pair]  # they read flat_gradient, once it is all-reduced; those of `local` before
    flat_gradient: Any  # shared vector


def from_gradient(
    loss: Any,
    params: Iterable[Any],
    step: Callable[..., list[Pair]],
    common: Sequence[Pair] = (),
    **options: Any,
) -> Updates:
    """Make an update rule's result from what one parameter does with its gradient.

    Parameters
    ----------
    loss : 0-d tensor
    params : shared variable, or iterable of them
    step : callable
        ``step(param, gradient, **options)`` returns the pairs (variable, new value) of one parameter and its
        state.
    common : sequence of (variable, new value)
        State that all parameters share, such as a count of steps.
    **options : scalar
        Numbers or 0-d tensors; `step` gets them in the dtype of the parameter.

    Returns
    -------
    Updates

    Raises
    ------
    TypeError, ValueError
        As `synk.extensions.updates.sgd`.

    Examples
    --------
    >>> def sign_descent(loss, params, learning_rate):
    ...     def step(p, g, learning_rate):
    ...         return [(p, p - learning_rate * pt.sign(g))]
    ...
    ...     return updates.from_gradient(loss, params, step, learning_rate=learning_rate)
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> step = train.make_train_function((w * x).mean(), [w], [x], sign_descent, learning_rate=0.1)
    >>> loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4))
    0.9
    """
    check_scalars(**options)
    params = listed(params)
    flat, expression, gradients = flat_gradient(loss, params)
    numbers = dict(zip(options, scalars(flat.dtype, *options.values()), strict=True))
    pairs: list[Pair] = []
    for param, gradient in zip(params, gradients, strict=True):
        pairs += step(param, gradient, **numbers)
    return Updates([(flat, expression, "sum")], [*common, *pairs], flat)


def scalars(dtype: str, *options: Any) -> list[Any]:
    """Convert options, numbers or 0-d tensors, to 0-d tensors of one dtype.

    Left alone, a float64 scalar would turn a float32 step into float64, and a Python float would be
    read at the precision of floatX.
    """
    return [
        pt.cast(option, dtype) if isinstance(option, Variable) else pt.constant(np.asarray(option, dtype))
        for option in options
    ]


def state_like(param: Any, name: str) -> Any:
    """Make a shared variable of zeros with the shape, static shape and dtype of a parameter."""
    zeros = np.zeros(param.get_value(borrow=True).shape, param.dtype)
    return pytensor.shared(zeros, shape=param.type.shape, name=f"{param.name or 'param'}_{name}")


def is_weight(param: Any) -> bool:
    """Say whether a parameter has two axes or more: no bias, and no scale or shift of a normalisation."""
    return param.type.ndim >= 2


def replaced(values: Sequence[Any], by: Mapping[Any, Any], what: str) -> tuple[Any, ...]:
    """Return graphs with other variables in the place of some; ValueError if none of them is there."""
    if not set(ancestors(values)) & by.keys():
        raise ValueError(
            f"{what} finds no gradient in its rule as ranks add it up: put accumulated outermost, as in "
            "accumulated(clipped(adam, 1.0), 4)"
        )
    return tuple(graph_replace(list(values), by, strict=False))


def check_common(updates: Updates, what: str) -> None:
    """Raise ValueError if a rule's steps are each rank's own, as `local` makes them."""
    if any(len(entry) != 2 for entry in updates.param_updates):
        raise ValueError(
            f"{what} needs a rule that reads the gradient of all ranks, and local makes steps of each rank: "
            "put local outermost, as in local(clipped(adam, 1.0)), and its updates in a synk.sequence "
            "without all_reduce"
        )


def check_last(updates: Updates, what: str, *earlier: str) -> None:
    """Raise ValueError if a wrapper that must be outside of `what` is within, among those that are named."""
    done = getattr(updates.flat_gradient.tag, "done", ())
    for name in earlier:
        if name in done:
            raise ValueError(
                f"{what} comes too late, as {LATE[name]}: put {name} outermost, as in "
                f"{name}({what}(sgd, ...), ...)"
            )


def mark_done(updates: Updates, what: str) -> None:
    """Note that new values of a rule are those of a wrapper, for `check_last`."""
    tag = updates.flat_gradient.tag
    tag.done = (*getattr(tag, "done", ()), what)


def check_scalars(**options: Any) -> None:
    """Raise unless every option is a number or a 0-d tensor."""
    for name, value in options.items():
        if np.ndim(value) != 0:
            raise ValueError(f"{name} has {np.ndim(value)} dimensions; pass a number or a 0-d tensor")


def check_decays(**options: Any) -> None:
    """Raise unless every option is a scalar in ``[0, 1)``, as far as its value is known."""
    check_scalars(**options)
    for name, value in options.items():
        if isinstance(value, int | float | np.number) and not 0 <= value < 1:
            raise ValueError(f"{name}={value} is outside [0, 1); at 1 or more the past would never fade")
