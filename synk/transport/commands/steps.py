"""The steps of commands on their way: training sends the same ones again and again.

steps -> PickledSteps.of -> payload ... KnownSteps.of -> steps, the same objects each time
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from synk.values import messages
from synk.values.by_value import UNKNOWN, dumped

REMEMBERED = 64  # payloads whose steps are known
SMALL_BYTES = 1 << 16  # of a payload that is remembered: a step may have arguments of any size


class PickledSteps:
    """The sender's side, which pickles steps once."""

    def __init__(self) -> None:
        self._kinds: list[type] | None = None
        self._steps: tuple[Any, ...] | None = None
        self._payload = b""

    def of(self, steps: tuple[Any, ...]) -> bytes:
        """Return the pickle of steps, the same object as for those before if they are equal."""
        if steps is not self._steps:
            # Steps of different classes may be equal: they are tuples.
            kinds = list(map(type, steps))
            if kinds != self._kinds or steps != self._steps:
                self._kinds, self._steps = None, None
                self._payload, code = dumped(steps)
                if code.is_sent:  # which may change while the steps stay equal
                    return self._payload
                self._kinds = kinds
            self._steps = steps
        return self._payload


class KnownSteps:
    """The receiver's side, which unpickles a payload once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def of(self, payload: bytes) -> tuple[Any, ...]:
        """Return the steps that were pickled, or one that raises what unpickling them has raised."""
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
    """Stands for steps that this rank could not unpickle: the command fails here, as others do."""

    error: Exception

    def run(self, rank: Any) -> Any:
        raise self.error
