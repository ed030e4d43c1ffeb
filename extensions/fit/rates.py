"""Callbacks that change the learning rate while a training goes on.

The rate is a shared scalar, given to the update rule as ``learning_rate``; or a 0-d `Data`, where it is a
broadcast input of the step. Rates that follow the number of steps alone are expressions: see
`synk.extensions.schedules`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import synk
from synk.extensions.fit.callback import Callback
from synk.extensions.fit.monitor import Monitor, Patience
from synk.extensions.fit.training import Training


def rate_of(rate: Any) -> float:
    """Return the present value of a shared scalar or a 0-d `Data`."""
    return float(rate.data if isinstance(rate, synk.Data) else rate.get_value())


def checked_rate(rate: Any) -> Any:
    """Return a rate; raise TypeError if it is neither a shared scalar nor a 0-d `Data`."""
    if getattr(rate, "ndim", None) == 0 and (isinstance(rate, synk.Data) or hasattr(rate, "get_value")):
        return rate
    raise TypeError(
        f"rate={rate!r} is neither a shared scalar, such as pytensor.shared(0.1, name='rate'), nor a 0-d Data"
    )


def set_rate(rate: Any, value: float) -> None:
    """Give a shared scalar or a 0-d `Data` a value, on every rank."""
    if isinstance(rate, synk.Data):
        rate[...] = value
    else:
        synk.broadcast(rate, np.asarray(value, rate.type.dtype))


class ReduceOnPlateau(Callback):
    """Multiplies a rate by a factor when a metric has not become better for `patience` epochs.

    Parameters
    ----------
    rate : shared scalar, or 0-d Data
    metric : str
    factor : float
    patience : int
        Epochs, counted anew after each reduction.
    least : float
        No rate is smaller.
    mode, min_delta
        As of `EarlyStopping`.

    See Also
    --------
    synk.extensions.schedules.steps : a rate that falls at given steps.

    Examples
    --------
    >>> from synk.extensions.fit import ReduceOnPlateau, fit
    >>> rate = pytensor.shared(np.array(0.1), name="rate")
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=rate)
    >>> callback = ReduceOnPlateau(rate, "loss", patience=1, min_delta=10.0)
    >>> history = fit(step, (np.ones(8),), epochs=3, callbacks=[callback], batch_size=8, progress=False)
    >>> print(rate.get_value().round(4))  # no epoch was better by 10
    0.001
    """

    def __init__(
        self,
        rate: Any,
        metric: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        least: float = 0.0,
        mode: str = "min",
        min_delta: float = 0.0,
    ):
        if not 0 < factor < 1:
            raise ValueError(f"factor={factor} is not between 0 and 1, so it reduces no rate")
        self._rate, self._metric, self._factor, self._least = checked_rate(rate), metric, factor, least
        self._patience = Patience(Monitor(metric, mode, min_delta), patience)

    def key(self) -> str:
        return f"ReduceOnPlateau {self._rate.name} {self._metric}"

    def reset(self) -> None:
        self._patience.reset()

    def on_train_begin(self, training: Training) -> None:
        training.check_metric(self._metric, f"ReduceOnPlateau(..., {self._metric!r})")

    def on_epoch_end(self, training: Training) -> None:
        if self._patience.note(training.metric(self._metric)):
            self._patience.waited = 0
            set_rate(self._rate, max(self._least, self._factor * rate_of(self._rate)))

    def state(self) -> dict[str, Any]:
        return {"rate": rate_of(self._rate), **self._patience.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        set_rate(self._rate, state["rate"])
        self._patience.load_state(state)


class LinearScaling(Callback):
    """Multiplies a rate by the number of ranks, up to which it rises along a line in the first steps.

    For scripts whose batches grow with the number of ranks, ``k``: step ``t``, counted from 0, has the rate
    ``base * (1 + (k - 1) * (t + 1) / (warm_up + 1))`` while ``t < warm_up``, then ``base * k``. Where a
    training goes on with other ranks, its rate follows them.

    Parameters
    ----------
    rate : shared scalar, or 0-d Data
    base : float
        The rate for the batch of one rank.
    warm_up : int
        Steps.

    See Also
    --------
    synk.extensions.schedules.scaled : the same as an expression.

    References
    ----------
    Goyal and others (2017), arXiv:1706.02677, sections 2.1 and 2.2. As an expression:
    ``schedules.warm_up(counter, schedules.scaled(base, k), warm_up, start=1 / k)``.

    Examples
    --------
    >>> from synk.extensions.fit import LinearScaling, fit
    >>> rate = pytensor.shared(np.array(0.1), name="rate")
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=rate)
    >>> callback = LinearScaling(rate, base=0.1)
    >>> history = fit(step, (np.ones(8),), epochs=1, callbacks=[callback], batch_size=8, progress=False)
    >>> print(rate.get_value())  # of two ranks
    0.2
    """

    def __init__(self, rate: Any, base: float, warm_up: int = 0):
        if warm_up < 0:
            raise ValueError(f"warm_up={warm_up} is no number of steps")
        self._rate, self._base, self._warm_up = checked_rate(rate), base, warm_up
        self._ranks_before: int | None = None

    def key(self) -> str:
        return f"LinearScaling {self._rate.name}"

    def reset(self) -> None:
        self._ranks_before = None

    def on_train_begin(self, training: Training) -> None:
        ranks = synk.n_ranks()
        if self._ranks_before is None:
            set_rate(self._rate, self._base * ranks)
        elif self._ranks_before != ranks:
            set_rate(self._rate, rate_of(self._rate) * ranks / self._ranks_before)
        self._warm(training.history.steps)

    def on_step_end(self, training: Training) -> None:
        if training.history.steps <= self._warm_up:
            self._warm(training.history.steps)

    def _warm(self, steps: int) -> None:
        if self._warm_up and steps <= self._warm_up:
            risen = min(1.0, (steps + 1) / (self._warm_up + 1))
            set_rate(self._rate, self._base * (1 + (synk.n_ranks() - 1) * risen))

    def state(self) -> dict[str, Any]:
        return {"rate": rate_of(self._rate), "ranks": synk.n_ranks()}

    def load_state(self, state: dict[str, Any]) -> None:
        set_rate(self._rate, state["rate"])
        self._ranks_before = state["ranks"]
