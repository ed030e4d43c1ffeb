"""The base class of callbacks, and the order in which a training calls them.

fit -> Hooks.of(training): on_train_begin -> (on_epoch_begin -> (on_step_end ...) -> on_epoch_end) ...
    -> on_train_end, also after an error
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from synk.extensions.fit.training import Training


class Callback:
    """A hook into a training: subclasses override the methods that they need.

    Each gets the `Training`, whose attributes say how far it is; ``training.stop("why")`` ends it after the
    present step. An `on_step_end` that is not overridden is not even called, since calls after each step cost
    time.

    Attributes
    ----------
    last : bool
        Whether it is called after the others, as a callback that saves their states must be.
    adds : sequence of str
        Names of the metrics that it adds to ``training.metrics`` at the end of each epoch.

    See Also
    --------
    synk.extensions.fit.fit : calls it.

    Examples
    --------
    >>> from synk.extensions.fit import Callback, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> class Print(Callback):
    ...     def on_epoch_end(self, training):
    ...         print(training.epoch, round(training.metrics["loss"], 3))
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[Print()], progress=False, batch_size=8)
    0 1.0
    1 0.64
    """

    last = False
    adds: Sequence[str] = ()

    def key(self) -> str:
        """Return the name of the callback's state in checkpoints: its class, and options if needed."""
        return type(self).__name__

    def reset(self) -> None:
        """Discard the state of an earlier training: a new one begins, or `load_state` is called next."""

    def on_train_begin(self, training: Training) -> None:
        """Called before the first epoch; in a resumed training, `load_state` is called before this."""

    def on_epoch_begin(self, training: Training) -> None:
        """Called before the first step of an epoch, or before the first step after a resume."""

    def on_step_end(self, training: Training) -> None:
        """Called after each step; its outputs are ``training.outputs``."""

    def on_epoch_end(self, training: Training) -> None:
        """Called after each epoch; its metrics, validation included, are ``training.metrics``."""

    def on_train_end(self, training: Training) -> None:
        """Called at the end, also after errors of other callbacks; ``training.error`` is the error."""

    def state(self) -> dict[str, Any]:
        """Return the state for checkpoints, in plain values: numbers, strings, None, lists and dicts."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` has returned."""


class Hooks:
    """The callbacks of one training, in the order in which they are called.

    Raises TypeError if one of them is no `Callback`, or has a method ``on_...`` that is never called.
    """

    def __init__(self, callbacks: Sequence[Callback]):
        known = [name for name in dir(Callback) if name.startswith("on_")]
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"{callback!r} is no Callback; pass instances of its subclasses")
            if unknown := [name for name in dir(callback) if name.startswith("on_") and name not in known]:
                raise TypeError(f"{callback!r} has {unknown}, which nobody calls; there are {known}")
        self.callbacks = sorted(callbacks, key=lambda callback: callback.last)
        self.on_step_end: list[Callable[[Training], None]] = [
            callback.on_step_end
            for callback in self.callbacks
            if type(callback).on_step_end is not Callback.on_step_end
        ]

    def named(self) -> dict[str, Callback]:
        """Return callbacks by the names that checkpoints use: their keys, numbered where they are equal."""
        found: dict[str, Callback] = {}
        for callback in self.callbacks:
            name, number = callback.key(), 1
            while (key := name if number == 1 else f"{name} {number}") in found:
                number += 1
            found[key] = callback
        return found

    def reset(self) -> None:
        """Call all `reset`."""
        for callback in self.callbacks:
            callback.reset()

    def epoch_begin(self, training: Training) -> None:
        """Call all `on_epoch_begin`."""
        for callback in self.callbacks:
            callback.on_epoch_begin(training)

    def epoch_end(self, training: Training) -> None:
        """Call all `on_epoch_end`."""
        for callback in self.callbacks:
            callback.on_epoch_end(training)

    @contextmanager
    def of(self, training: Training) -> Iterator[None]:
        """Call every `on_train_begin`; after the body, `on_train_end` of the callbacks that have begun."""
        training.error = None
        begun: list[Callback] = []
        with ExitStack() as ends:  # so that each ends, whatever others raise
            try:
                for callback in self.callbacks:
                    callback.on_train_begin(training)
                    begun.append(callback)
                yield
            except BaseException as error:
                training.error = error
                raise
            finally:
                for callback in reversed(begun):
                    ends.callback(callback.on_train_end, training)
