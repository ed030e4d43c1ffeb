"""Pickle and unpickle the steps of commands once each: training sends the same steps again and again.

steps -> PickledSteps.of -> payload ... KnownSteps.of -> steps, the same objects each time
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from synk.values import messages
from synk.values.by_value import UNKNOWN, dumped

REMEMBERED = 64  # payloads whose steps a receiver keeps
SMALL_BYTES = 1 << 16  # longer payloads are not kept, since arguments in a step may be of any size


class PickledSteps:
    """The sender's memory of the last steps, so that equal steps are pickled once."""

    def __init__(self) -> None:
        self._kinds: list[type] | None = None
        self._steps: tuple[Any, ...] | None = None
        self._payload = b""

    def of(self, steps: tuple[Any, ...]) -> bytes:
        """Return the pickle of steps; it is the same object as before if the steps equal the last ones."""
        if steps is not self._steps:
            # Classes are compared, too: steps that are tuples may be equal though their classes differ.
            kinds = list(map(type, steps))
            if kinds != self._kinds or steps != self._steps:
                self._kinds, self._steps = None, None
                self._payload, code = dumped(steps)
                if code.is_sent:  # the script's code may change while steps stay equal: pickle it each time
                    return self._payload
                self._kinds = kinds
            self._steps = steps
        return self._payload


class KnownSteps:
    """The receiver's memory of steps by their pickles, so that equal payloads are unpickled once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def of(self, payload: bytes) -> tuple[Any, ...]:
        """Return the steps from their pickle; if that fails, return one step that raises the error."""
        steps = self._known.get(payload)
        if steps is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            try:
                steps = pickle.loads(payload)
            except Exception as error:
                if isinstance(error, AttributeError | ImportError):
                    error.add_note(UNKNOWN)
                return (Unreadable(error),)
            if len(payload) <= SMALL_BYTES:
                self._known[payload] = steps
        return steps


@dataclass(slots=True)
class Unreadable(messages.Step):
    """A step in the place of steps that this rank could not unpickle; it raises the error when it runs."""

    error: Exception

    def run(self, rank: Any) -> Any:
        raise self.error
