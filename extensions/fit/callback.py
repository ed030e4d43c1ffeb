"""Callbacks: what is done beside the steps of a training.

fit -> Hooks.of(training): on_train_begin -> (on_epoch_begin -> (on_step_end ...) -> on_epoch_end) ...
    -> on_train_end, whatever happens
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from synk.extensions.fit.training import Training


class Callback:
    """Something that is done beside the steps of a training: override the methods that are needed.

    Each gets the `Training`, whose attributes say how far it is; ``training.stop("why")`` ends it after the
    present step. An `on_step_end` that is not overridden is not even called, since calls after each step cost
    time.

    Attributes
    ----------
    last : bool
        Whether it is called after the others, as a callback that saves their states must be.
    adds : sequence of str
        Names of the metrics that it adds to ``training.metrics`` at the end of each epoch.
    """

    last = False
    adds: Sequence[str] = ()

    def key(self) -> str:
        """Return the name of its state in checkpoints: its class, and what else a state depends on."""
        return type(self).__name__

    def reset(self) -> None:
        """Discard the state of an earlier training: another one begins, or `load_state` is called next."""

    def on_train_begin(self, training: Training) -> None:
        """Do what is due before the first epoch; in a resumed training, `load_state` comes before."""

    def on_epoch_begin(self, training: Training) -> None:
        """Do what is due before the first step of an epoch, or before the first step after a resume."""

    def on_step_end(self, training: Training) -> None:
        """Do what is due after a step, whose outputs are ``training.outputs``."""

    def on_epoch_end(self, training: Training) -> None:
        """Do what is due after an epoch, whose metrics are ``training.metrics``, validation included."""

    def on_train_end(self, training: Training) -> None:
        """Do what is due at the end, even if other callbacks raise; ``training.error`` caused it, if any."""

    def state(self) -> dict[str, Any]:
        """Return its state for checkpoints, in plain values: numbers, strings, None, lists and dicts."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` has returned."""


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
        """Return callbacks by their keys, numbered if equal, as checkpoints know them."""
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
        """Call every `on_train_begin`, and after the body `on_train_end` of those that have begun."""
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
