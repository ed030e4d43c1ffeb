"""Adam's scale in the memory of a row and a column; see `synk.extensions.updates`."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk.extensions.updates.parts import Updates, check_scalars, from_gradient, scalars, state_like


def adafactor(
    loss: Any,
    params: Iterable[Any],
    learning_rate: Any = None,
    *,
    decay: float = 0.8,
    threshold: Any = 1.0,
    epsilon1: float = 1e-30,
    epsilon2: Any = 0.001,
) -> Updates:
    """Return steps scaled by the root of a mean square that is kept as row and column means.

    Each step does ``t := t + 1``, ``b = 1 - t**-decay`` and, with ``s = g**2 + epsilon1``::

        r := b * r + (1 - b) * mean over columns of s
        c := b * c + (1 - b) * mean over rows of s
        u  = g / sqrt(outer(r, c) / mean(r))
        u  = u / max(1, rms(u) / threshold)
        p := p - learning_rate * max(epsilon2, rms(p)) * u

    ``rms`` is the root of the mean square. Of a parameter with more axes than two, such as the filters of a
    convolution, rows are the first axis and columns all others; one with fewer keeps ``v := b * v + (1 - b) *
    s`` in the place of both, and ``u = g / sqrt(v)``. So the state of a matrix of a million weights is two
    thousand numbers, where Adam's is two million. Every rank updates all, as it needs whole rows and columns.

    Parameters
    ----------
    loss : 0-d tensor
        What to make small, of the rows of the batch.
    params : shared variable, or iterable of them
        What to train.
    learning_rate : scalar, optional
        Relative to the root mean square of a parameter; by default ``min(0.01, 1 / sqrt(t))``.
    decay : float
        Of the decay rate ``b``, positive.
    threshold : scalar
        The root mean square of the largest step ``u``.
    epsilon1 : float
        Keeps the divisor from 0.
    epsilon2 : scalar
        The least root mean square of a parameter in its rate.

    Returns
    -------
    grad_updates, param_updates, flat_gradient

    Raises
    ------
    TypeError, ValueError
        If a parameter is no shared tensor of floats, the loss does not depend on it, or an option is not a
        scalar, or out of range.

    See Also
    --------
    synk.extensions.train.make_train_function : makes a step of the rule.

    References
    ----------
    Shazeer and Stern (2018), arXiv:1804.04235, algorithms 4 and 5, with the parameters of section 9.

    Examples
    --------
    >>> x, w = pt.vector("x"), pytensor.shared(np.array([[3.0, 4.0]]), name="w")
    >>> step = train.make_train_function((w.sum() * x).mean(), [w], [x], updates.adafactor)
    >>> loss = step([1.0, 3.0])  # towards (1, 1), a hundredth of the root mean square of w
    >>> print(w.get_value().round(4))
    [[2.9646 3.9646]]
    """
    check_scalars(threshold=threshold, epsilon2=epsilon2)
    for name, value in (("decay", decay), ("epsilon1", epsilon1)):
        if not isinstance(value, int | float | np.number):
            raise TypeError(f"{name}={value!r} is no number; pass one, as {name} stays the same")
    if not decay > 0:
        raise ValueError(f"decay={decay} is not positive; the past would never fade")
    if learning_rate is not None:
        check_scalars(learning_rate=learning_rate)
    t = pytensor.shared(np.asarray(0, "int64"), name="t")
    new_t, power, most_rate = scalars("float64", t + 1, -decay, 0.01)
    fading = new_t**power
    relative = pt.minimum(most_rate, 1 / pt.sqrt(new_t)) if learning_rate is None else learning_rate

    def step(p: Any, g: Any) -> list:
        shape = p.get_value(borrow=True).shape
        rate, keep, rest, most, least = scalars(p.dtype, relative, 1 - fading, fading, threshold, epsilon2)
        squares = pt.sqr(g) + np.asarray(max(epsilon1, np.finfo(p.dtype).tiny), p.dtype)
        if p.type.ndim < 2:
            v = state_like(p, "squares")
            pairs = [(v, keep * v + rest * squares)]
            u = g / pt.sqrt(pairs[0][1])
        else:
            table = squares.reshape((shape[0], prod(shape[1:])))
            r, c = _zeros(p, shape[0], "rows"), _zeros(p, prod(shape[1:]), "columns")
            pairs = [(of, keep * of + rest * _mean(table, axis)) for of, axis in ((r, 1), (c, 0))]
            new_r, new_c = (new for _, new in pairs)
            # One after the other: the product of both may be too small for the dtype.
            u = g.reshape((shape[0], prod(shape[1:]))) / pt.sqrt(new_r / _mean(new_r))[:, None]
            u = (u / pt.sqrt(new_c)[None, :]).reshape(shape)
        u = u / pt.maximum(np.asarray(1, p.dtype), _rms(u) / most)
        return [*pairs, (p, p - rate * pt.maximum(least, _rms(p)) * u)]

    return from_gradient(loss, params, step, common=[(t, t + 1)])


def _zeros(param: Any, length: int, name: str) -> Any:
    value = np.zeros(length, param.dtype)
    return pytensor.shared(value, shape=value.shape, name=f"{param.name or 'param'}_{name}")


def _mean(x: Any, axis: int | None = None) -> Any:
    """Return a mean in the dtype of `x`, without arrays of another; float16 is added up in float32."""
    total = x.sum(axis=axis, dtype="float32" if x.dtype == "float16" else x.dtype)
    return pt.cast(total / pt.cast(x.size // total.size, total.dtype), x.dtype)


def _rms(x: Any) -> Any:
    """Return the root of the mean square of all elements."""
    return pt.sqrt(_mean(pt.sqr(x)))
