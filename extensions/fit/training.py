"""The state of a training, which callbacks read and checkpoints save."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import synk
from synk.extensions.fit.feeds import Feed
from synk.extensions.fit.history import COLUMNS, History
from synk.extensions.fit.metrics import Averages, Validation

STATE_VERSION = 1


class Stateful(Protocol):
    """The part of a callback that a training's state needs: names of its metrics, and its own state."""

    adds: Sequence[str]

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class Training:
    """The state of one training.

    Attributes
    ----------
    step : synk.Function
    feed : Feed
    validation : Validation or None
    epochs : int
        To be trained altogether.
    callbacks : dict of str to Callback
        By the names that checkpoints know them by.
    epoch : int
        That runs, or in ``on_epoch_end`` has ended; counted from 0.
    batch : int
        Batches of this epoch that are done; 0 once it has ended.
    outputs
        What the last step returned.
    averages : Averages
        Of the outputs, over the rows of this epoch.
    metrics : dict of str to float
        Of the last epoch that has ended, those of validation included: its entry in the history, to which
        callbacks add those that their ``adds`` name.
    history : History
        Of all epochs that have ended, and the number of all steps.
    error : BaseException or None
        By which the training has ended, in ``on_train_end``.

    See Also
    --------
    synk.extensions.fit.Callback : its methods get this.

    Examples
    --------
    >>> from synk.extensions.fit import Callback, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> class StopWhenSmall(Callback):
    ...     def on_epoch_end(self, training):
    ...         if training.metrics["loss"] < 0.5:
    ...             training.stop("the loss is small")
    >>> callbacks = [StopWhenSmall()]
    >>> history = fit(step, (np.ones(8),), epochs=9, callbacks=callbacks, progress=False, batch_size=8)
    >>> len(history), history.stopped
    (3, 'the loss is small')
    """

    def __init__(
        self,
        step: synk.Function,
        feed: Feed,
        epochs: int,
        validation: Validation | None = None,
        metrics: Sequence[str] | None = None,
        callbacks: Mapping[str, Stateful] | None = None,
    ):
        self.step, self.feed, self.epochs, self.validation = step, feed, epochs, validation
        self.callbacks = callbacks or {}
        self.epoch = self.batch = 0
        self.outputs: Any = None
        self.averages = Averages(step, metrics)
        self.metrics: dict[str, float] = {}
        self.history = History()
        self.error: BaseException | None = None
        self.resumed_from: Path | None = None
        self._check_names(metrics)
        self._began = 0.0  # the seconds of a clock, when this epoch began or was gone on with
        self._rows_before = 0  # then

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the step's graph; to compute it takes a moment for a large graph."""
        return self.step.fingerprint()

    @property
    def metric_names(self) -> list[str]:
        """Names of the numbers that every epoch has."""
        added = [name for callback in self.callbacks.values() for name in callback.adds]
        return [*self.averages.names, *(self.validation.names if self.validation else []), *added]

    def _check_names(self, given: Sequence[str] | None) -> None:
        most = max(len(self.averages.names), len(self.validation.names) if self.validation else 0)
        if given is not None and len(given) > most:
            raise ValueError(
                f"metrics={list(given)} names {len(given)} numbers, but at most {most} are returned"
            )
        names = [*self.metric_names, *COLUMNS]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two entries of an epoch are called {twice}; pass other metrics=[...]")

    def check_metric(self, name: str, asked: str) -> None:
        """Raise ValueError if there is no metric of that name; ``asked`` says who wants it."""
        if name not in self.metric_names:
            raise ValueError(f"{asked} names no metric; there are {self.metric_names}")

    def metric(self, name: str) -> float:
        """Return a metric of the last epoch; ValueError if it has none of that name."""
        if name not in self.metrics:
            raise ValueError(
                f"epoch {self.epoch} has no {name!r}, only {list(self.metrics)}; a callback that adds it "
                "comes before those that go by it"
            )
        return self.metrics[name]

    @property
    def stopping(self) -> str | None:
        """Why the training ends after this step; None if it goes on."""
        return self.history.stopped

    def stop(self, why: str) -> None:
        """End the training after this step, or epoch; the first reason counts."""
        if self.history.stopped is None:
            self.history.stopped = why

    def interrupt(self, why: str) -> None:
        """End the training after this step or epoch, because a signal has come.

        Unlike `stop`, this holds even if `load_state` sets the training back meanwhile.
        """
        self.history.interrupted = True
        self.stop(why)

    def complete(self) -> None:
        """Forget why the training should have stopped: it has come to its end before."""
        self.history.stopped, self.history.interrupted = None, False

    def numbers(self) -> dict[str, float]:
        """Return the numbers that the last step has returned, by name."""
        return self.averages.of(self.outputs)

    def begin_epoch(self) -> None:
        """Begin to measure the time of an epoch, or of what is left of it."""
        self._began, self._rows_before = time.perf_counter(), self.averages.rows

    def end_epoch(self) -> None:
        """Validate, and note the epoch in the history."""
        seconds = time.perf_counter() - self._began
        numbers = {**self.averages.means(), **(self.validation() if self.validation else {})}
        rate = (self.averages.rows - self._rows_before) / seconds
        self.metrics = {"epoch": self.epoch, **numbers, "seconds": seconds, "rows_per_second": rate}
        self.history.epochs.append(self.metrics)
        self.batch = 0
        self.averages.reset()

    # --- what a checkpoint has of it ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state as plain values, from which another process can continue."""
        return {
            "version": STATE_VERSION,
            "epoch": len(self.history),
            "batch": self.batch,
            "steps": self.history.steps,
            "rows": self.averages.rows,
            "sums": dict(zip(self.averages.names, self.averages.sums, strict=True)),
            "order": self.feed.order(),
            "history": list(self.history.epochs),
            "callbacks": {name: callback.state() for name, callback in self.callbacks.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` has returned.

        Raises ValueError if rows would come in another order in the middle of an epoch, or other metrics
        were averaged there; nothing has changed then.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"the state of a training has version {state.get('version')}, not {STATE_VERSION}"
            )
        now = {"order": self.feed.order(), "metrics": self.averages.names}
        saved = {"order": state["order"], "metrics": list(state["sums"])}
        for what in now:
            if state["batch"] and now[what] != saved[what]:
                raise ValueError(
                    f"the checkpoint is of the middle of an epoch, with {what} {saved[what]}, but now it is "
                    f"{now[what]}; go on with the same, or from a checkpoint of the end of an epoch"
                )
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.history.steps, self.history.epochs = state["steps"], list(state["history"])
        if not self.history.interrupted:
            self.history.stopped = None
        self.metrics = self.history.epochs[-1] if self.history.epochs else {}
        self.averages.reset()
        if self.batch:
            self.averages.rows, self.averages.sums = state["rows"], list(state["sums"].values())

    def load_callbacks(self, state: Mapping[str, Any]) -> None:
        """Restore the callbacks' states from one that `state` has returned; new callbacks keep theirs."""
        for name, callback in self.callbacks.items():
            if name in state["callbacks"]:
                callback.load_state(state["callbacks"][name])
