"""Callbacks that end a training early."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

import synk
from synk.extensions.checkpoint.contents import named, value_of
from synk.extensions.fit.callback import Callback
from synk.extensions.fit.monitor import Monitor, Patience
from synk.extensions.fit.training import Training


class EarlyStopping(Callback):
    """Stops when a metric has not become better for `patience` epochs.

    Parameters
    ----------
    metric : str
    patience : int
        Epochs, at least one.
    mode : {"min", "max"}
        Whether smaller or larger values are better.
    min_delta : float
        By which a value must be better to count.

    For the parameters of the best epoch, load the checkpoint of `synk.extensions.fit.best`.

    See Also
    --------
    synk.extensions.fit.fit : calls it.

    Examples
    --------
    >>> from synk.extensions.fit import EarlyStopping, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = EarlyStopping("loss", patience=1, min_delta=0.1)
    >>> history = fit(step, (np.ones(8),), epochs=9, callbacks=[callback], batch_size=4, progress=False)
    >>> len(history) < 9
    True
    """

    def __init__(
        self, metric: str = "val_loss", patience: int = 1, mode: str = "min", min_delta: float = 0.0
    ):
        self._metric = metric
        self._patience = Patience(Monitor(metric, mode, min_delta), patience)

    def key(self) -> str:
        return f"EarlyStopping {self._metric}"

    def reset(self) -> None:
        self._patience.reset()

    def on_train_begin(self, training: Training) -> None:
        training.check_metric(self._metric, f"EarlyStopping({self._metric!r})")
        self._stop_if_over(training)  # it may go on from where it had stopped

    def on_epoch_end(self, training: Training) -> None:
        self._patience.note(training.metric(self._metric))
        self._stop_if_over(training)

    def _stop_if_over(self, training: Training) -> None:
        if self._patience.is_over:
            best = self._patience.best
            than = "NaN" if best is None else f"{best:.4g}"
            training.stop(f"{self._metric} was no better than {than} for too long")

    def state(self) -> dict[str, Any]:
        return self._patience.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self._patience.load_state(state)


class StopOnNaN(Callback):
    """Raises `synk.NonFinite`, which names ranks and variables, after a step whose loss is NaN or infinite.

    The parameters have changed by then, and what one rank had computed is in all of them. With
    ``make_train_function(..., check_finite=True)`` each rank looks at its gradient before they do, and the
    error names the rank where it began.

    See Also
    --------
    synk.check_finite : looks before the step.

    Examples
    --------
    >>> from synk.extensions.fit import StopOnNaN, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = StopOnNaN()
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> try:
    ...     fit(step, (np.array([1.0, np.nan]),), epochs=1, callbacks=[callback], batch_size=2)
    ... except synk.NonFinite:
    ...     print("not finite")
    not finite
    """

    def on_step_end(self, training: Training) -> None:
        # Where an output is not finite, neither is its sum.
        if all(map(isfinite, training.averages.sums)):
            return
        said = (
            f"after step {training.history.steps}: {training.numbers()}; a smaller learning rate may help, "
            "from the beginning or from an earlier checkpoint, fit(..., resume=path)"
        )
        state = training.step.state
        variables = [one for one in named(list(state)).values() if _is_float(one)]
        try:
            synk.check_finite(variables)
        except synk.NonFinite as error:
            error.add_note(said)
            raise
        raise FloatingPointError(f"{said}, though all variables of all ranks are finite")


def _is_float(variable: Any) -> bool:
    value = value_of(variable)
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"
