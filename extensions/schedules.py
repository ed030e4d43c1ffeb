"""Learning rates that follow the number of steps, as expressions of a shared counter.

    counter = schedules.counter()                                   # steps done
    rate = schedules.cosine(counter, 0.1, n_steps, warm_up=500)
    rule = schedules.counting(updates.momentum, counter)            # as the rule, and counts
    step = train.make_train_function(loss, params, inputs, rule, learning_rate=rate)

The counter advances with the parameters, in the update that every rank runs once a step: by one, whatever
the slices, and also where a rank has no rows. So every rank has the same rate. A step has the rate of the
number of steps done *before* it: 0 for the first.

Rates are float64 scalars, ``t`` in the formulas below is the counter; update rules round them to the
parameters' dtype. Those that take a rate take a number, or another schedule:
``schedules.warm_up(counter, schedules.steps(counter, 0.1, {30_000: 0.1}), 500)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synk.values.checks import checked_count

__all__ = [
    "cosine",
    "counter",
    "counting",
    "one_cycle",
    "piecewise",
    "polynomial",
    "scaled",
    "steps",
    "warm_up",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__


def counter(start: int = 0, name: str = "step") -> Any:
    """Make the shared number of steps done.

    Save and load it with the parameters, or a run that goes on begins its schedule anew.

    Parameters
    ----------
    start : int
    name : str

    Returns
    -------
    shared int64 scalar

    Raises
    ------
    TypeError, ValueError
        `start` is no integer, or negative.

    See Also
    --------
    synk.extensions.schedules.counting : makes the rule that counts the steps.

    Examples
    --------
    >>> schedules.counter().get_value()
    array(0)
    """
    return pytensor.shared(np.asarray(checked_count("start", start, 0), "int64"), name=name)


def counting(rule: Callable[..., Any], counter: Any) -> Callable[..., Any]:
    """Return an update rule that does what `rule` does, and counts its steps.

    Each step does ``t := t + 1`` beside the updates of the rule, which read the old ``t``.

    (An update ``(counter, counter + 1)`` among the `updates` of `synk.extensions.train.make_train_function`
    would also count once a step; but those come with the gradient, before the parameters, and the first rate
    would be that of ``t = 1``.)

    Parameters
    ----------
    rule : callable
        As in `synk.extensions.updates`.
    counter : shared scalar
        As `counter` makes it.

    Returns
    -------
    callable
        ``counted(loss, params, **options)``, as `rule`.

    Raises
    ------
    TypeError
        `counter` is no shared scalar of integers.

    See Also
    --------
    synk.extensions.schedules.counter : makes the counter.

    Examples
    --------
    >>> x, w, t = pt.vector("x"), pytensor.shared(np.array(1.0), name="w"), schedules.counter()
    >>> rate = schedules.steps(t, 0.1, {1: 0.5})
    >>> rule = schedules.counting(updates.sgd, t)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=rate)
    >>> for _ in range(2):  # the gradient is 2
    ...     loss = step([1.0, 3.0])
    >>> print(w.get_value().round(4), t.get_value())
    0.7 2
    """
    _check_counter(counter)
    if not isinstance(counter, SharedVariable):
        raise TypeError(f"counter {counter} is not a shared variable; make it by schedules.counter()")

    def counted(loss: Any, params: Any, **options: Any) -> Any:
        made = rule(loss, params, **options)
        return made._replace(param_updates=[*made.param_updates, (counter, counter + 1)])

    return counted


def steps(counter: Any, base: Any, factors: Mapping[int, float]) -> Any:
    """Return a rate that is multiplied by a factor at certain steps.

    ``base`` times all factors whose step is ``<= t``: with ``{30_000: 0.1, 60_000: 0.1}``, `base` is
    followed by a tenth and then by a hundredth of it.

    Parameters
    ----------
    counter : scalar of integers
    base : number or scalar
        The first rate.
    factors : dict of int to float
        By the number of steps done before.

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        A step is no integer or not positive, or an argument is not a scalar.

    See Also
    --------
    synk.extensions.schedules.counting : makes the rule that counts the steps.

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.steps(t, 0.1, {2: 0.5, 3: 0.1})
    >>> [round(float(rate.eval({t: k})), 4) for k in range(4)]
    [0.1, 0.1, 0.05, 0.005]
    """
    _check_counter(counter)
    rate = _scalar("base", base)
    for first, factor in sorted(factors.items()):
        first = checked_count("a key of factors", first)
        rate = pt.switch(pt.ge(counter, first), rate * _scalar(f"factors[{first}]", factor), rate)
    return rate


def cosine(counter: Any, peak: Any, n_steps: int, *, warm_up: int = 0, final: Any = 0.0) -> Any:
    """Return a rate that rises to a peak along a line, and falls from it along half a cosine.

    With ``s = (t - warm_up) / (n_steps - warm_up)``::

        peak * (t + 1) / (warm_up + 1)                        while t < warm_up
        final + (peak - final) * (1 + cos(pi * s)) / 2        while t < n_steps
        final                                                 then

    Parameters
    ----------
    counter : scalar of integers
    peak : number or scalar
        The largest rate, of step ``t = warm_up``.
    n_steps : int
        Steps altogether, those of the warm-up included.
    warm_up : int
        Steps before the peak.
    final : number or scalar

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        A number of steps is no integer or negative, the warm-up takes all steps, or an argument is not a
        scalar.

    See Also
    --------
    synk.extensions.schedules.counting : makes the rule that counts the steps.

    References
    ----------
    Loshchilov and Hutter (2016), arXiv:1608.03983, equation 5 without restarts; the warm-up as in
    Goyal and others (2017), arXiv:1706.02677.

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.cosine(t, peak=0.1, n_steps=4, warm_up=1)
    >>> [round(float(rate.eval({t: k})), 3) for k in range(5)]
    [0.05, 0.1, 0.075, 0.025, 0.0]
    """
    _check_counter(counter)
    n_steps, before = checked_count("n_steps", n_steps), checked_count("warm_up", warm_up, 0)
    if before >= n_steps:
        raise ValueError(f"warm_up={before} leaves none of n_steps={n_steps}; pass fewer, or more steps")
    peak, final = _scalar("peak", peak), _scalar("final", final)
    t = _as_float(counter)
    fallen = pt.clip((t - before) / (n_steps - before), 0.0, 1.0)
    falling = final + (peak - final) * (1 + pt.cos(np.float64(np.pi) * fallen)) / 2
    return pt.switch(t < before, peak * (t + 1) / (before + 1), falling)


def polynomial(counter: Any, first: Any, n_steps: int, *, power: Any = 1.0, final: Any = 0.0) -> Any:
    """Return a rate that falls along a power of the steps that are left.

    ``final + (first - final) * (1 - t / n_steps)**power`` while ``t < n_steps``, then ``final``: along a line
    with `power` of 1.

    Parameters
    ----------
    counter : scalar of integers
    first : number or scalar
    n_steps : int
        Steps altogether.
    power : number or scalar
        Positive.
    final : number or scalar

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        `n_steps` is no integer or not positive, or an argument is not a scalar.

    See Also
    --------
    synk.extensions.schedules.warm_up : lets it begin slowly.

    References
    ----------
    Liu, Rabinovich and Berg (2015), "ParseNet", arXiv:1506.04579, section 3.1, "poly".

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.polynomial(t, 0.1, n_steps=4, power=2)
    >>> [round(float(rate.eval({t: k})), 4) for k in range(5)]
    [0.1, 0.0563, 0.025, 0.0063, 0.0]
    """
    _check_counter(counter)
    n_steps = checked_count("n_steps", n_steps)
    first, final, power = _scalar("first", first), _scalar("final", final), _scalar("power", power)
    left = pt.clip(1 - _as_float(counter) / n_steps, 0.0, 1.0)
    return final + (first - final) * left**power


def one_cycle(
    counter: Any,
    peak: Any,
    n_steps: int,
    *,
    rising: float = 0.3,
    first: Any = None,
    final: Any = None,
) -> Any:
    """Return a rate that rises to a peak along half a cosine, and falls far lower along another.

    With ``m = rising * (n_steps - 1)``, the step of the peak::

        first + (peak - first) * (1 - cos(pi * t / m)) / 2                         while t < m
        final + (peak - final) * (1 + cos(pi * (t - m) / (n_steps - 1 - m))) / 2   while t < n_steps - 1
        final                                                                      then

    Parameters
    ----------
    counter : scalar of integers
    peak : number or scalar
        The largest rate.
    n_steps : int
        Steps altogether, at least 2.
    rising : float
        The share of the steps before the peak, between 0 and 1.
    first : number or scalar, optional
        By default ``peak / 25``.
    final : number or scalar, optional
        By default ``first / 10_000``.

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        `n_steps` is no integer or less than 2, `rising` not between 0 and 1, or an argument is not a scalar.

    See Also
    --------
    synk.extensions.schedules.cosine : begins at the peak, or after a few steps.

    References
    ----------
    Smith and Topin (2017), arXiv:1708.07120; with cosines in the place of lines, as is usual since. The peak
    of torch's ``OneCycleLR`` comes ``1 - rising`` steps earlier.

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.one_cycle(t, peak=1.0, n_steps=5, rising=0.5)
    >>> [round(float(rate.eval({t: k})), 2) for k in range(6)]
    [0.04, 0.52, 1.0, 0.5, 0.0, 0.0]
    """
    _check_counter(counter)
    n_steps = checked_count("n_steps", n_steps, 2)
    if not 0 < rising < 1:
        raise ValueError(f"rising={rising} is not between 0 and 1; pass the share of steps before the peak")
    peak = _scalar("peak", peak)
    first = peak / 25 if first is None else _scalar("first", first)
    final = first / 10_000 if final is None else _scalar("final", final)
    t, last = _as_float(counter), n_steps - 1
    top = rising * last
    risen = pt.clip(t / top, 0.0, 1.0)
    fallen = pt.clip((t - top) / (last - top), 0.0, 1.0)
    up = first + (peak - first) * (1 - pt.cos(np.float64(np.pi) * risen)) / 2
    down = final + (peak - final) * (1 + pt.cos(np.float64(np.pi) * fallen)) / 2
    return pt.switch(t < top, up, down)


def piecewise(counter: Any, rates: Mapping[int, float]) -> Any:
    """Return a rate along straight lines between given ones.

    Before the first of the steps it is the first rate, after the last one the last. For a rate that stays
    the same between some steps, `steps` multiplies by factors.

    Parameters
    ----------
    counter : scalar of integers
    rates : dict of int to number or scalar
        By the number of steps done before.

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        There are no rates, a step is no integer or negative, or an argument is not a scalar.

    See Also
    --------
    synk.extensions.schedules.steps : a rate in steps.

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.piecewise(t, {1: 0.0, 3: 1.0, 4: 0.5})
    >>> [round(float(rate.eval({t: k})), 2) for k in range(6)]
    [0.0, 0.0, 0.5, 1.0, 0.5, 0.5]
    """
    _check_counter(counter)
    if not rates:
        raise ValueError("rates is empty; pass rates by their steps, such as {0: 0.1, 1000: 0.0}")
    points = [
        (checked_count("a key of rates", step, 0), _scalar(f"rates[{step}]", rate))
        for step, rate in sorted(rates.items())
    ]
    t, (_, rate) = _as_float(counter), points[0]
    for (start, one), (stop, other) in pairwise(points):
        share = pt.clip((t - start) / (stop - start), 0.0, 1.0)
        rate = pt.switch(t > start, one + (other - one) * share, rate)
    return rate


def warm_up(counter: Any, rate: Any, n_steps: int, *, start: Any = 0.0) -> Any:
    """Return a rate that grows along a line to what it would be without.

    ``rate * (start + (1 - start) * (t + 1) / (n_steps + 1))`` while ``t < n_steps``, then ``rate``.

    Parameters
    ----------
    counter : scalar of integers
    rate : number or scalar
        Constant, or a schedule.
    n_steps : int
        Steps with a smaller rate.
    start : number or scalar
        The factor of ``t = -1``, so that no step is lost on a rate of zero; ``1 / k`` for a rate that is
        scaled by ``k``.

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        `n_steps` is no integer or negative, or an argument is not a scalar.

    See Also
    --------
    synk.extensions.schedules.counting : makes the rule that counts the steps.

    References
    ----------
    Goyal and others (2017), arXiv:1706.02677, section 2.2, "gradual warmup".

    Examples
    --------
    >>> t = pt.lscalar("t")
    >>> rate = schedules.warm_up(t, 0.1, n_steps=3)
    >>> [round(float(rate.eval({t: k})), 3) for k in range(5)]
    [0.025, 0.05, 0.075, 0.1, 0.1]
    """
    _check_counter(counter)
    n_steps = checked_count("n_steps", n_steps, 0)
    rate, start = _scalar("rate", rate), _scalar("start", start)
    risen = pt.minimum((_as_float(counter) + 1) / (n_steps + 1), 1.0)
    return rate * (start + (1 - start) * risen)


def scaled(rate: Any, n_ranks: int) -> Any:
    """Return a rate times the number of ranks, for batches that grow with them.

    The linear scaling rule: "when the minibatch size is multiplied by k, multiply the learning rate by k". A
    step of synk is that of one process on the whole batch, on however many ranks; so this is for scripts that
    give every rank as many rows as one would have had, and for those only.

    Parameters
    ----------
    rate : number or scalar
        For the batch of one rank.
    n_ranks : int
        As `synk.fork` returns it.

    Returns
    -------
    0-d float64 PyTensor tensor

    Raises
    ------
    TypeError, ValueError
        `n_ranks` is no integer or not positive, or the rate is not a scalar.

    See Also
    --------
    synk.extensions.schedules.counting : makes the rule that counts the steps.

    References
    ----------
    Goyal and others (2017), arXiv:1706.02677, section 2.1.

    Examples
    --------
    >>> rate = schedules.scaled(0.1, synk.n_ranks())
    >>> print(rate.eval())
    0.2
    """
    return _scalar("rate", rate) * float(checked_count("n_ranks", n_ranks))


def _as_float(counter: Any) -> Any:
    """Return a count as float64, which is exact up to 2**53 steps."""
    return pt.cast(counter, "float64")


def _scalar(name: str, value: Any) -> Any:
    """Return a rate or factor as a float64 scalar: a float32 step count would stop at 2**24."""
    if np.ndim(value) != 0:
        raise ValueError(f"{name} has {np.ndim(value)} dimensions; pass a number or a 0-d tensor")
    return pt.cast(value, "float64") if isinstance(value, Variable) else pt.constant(value, dtype="float64")


def _check_counter(counter: Any) -> None:
    """Raise unless steps can be counted by it."""
    dtype = getattr(counter, "dtype", None)
    if not isinstance(counter, Variable) or counter.ndim != 0 or np.dtype(dtype).kind not in "iu":
        raise TypeError(f"counter={counter!r} is no scalar of integers; make it by schedules.counter()")
