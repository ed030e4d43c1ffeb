"""The steps of commands on their way: training sends the same ones again and again.

steps -> PickledSteps.of -> payload ... KnownSteps.of -> steps, the same objects each time
"""

from __future__ import annotations

import pickle
from typing import Any

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
                self._kinds, self._payload = kinds, pickle.dumps(steps, protocol=5)
            self._steps = steps
        return self._payload


class KnownSteps:
    """The receiver's side, which unpickles a payload once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def of(self, payload: bytes) -> tuple[Any, ...]:
        """Return the steps that were pickled."""
        steps = self._known.get(payload)
        if steps is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            steps = pickle.loads(payload)
            if len(payload) <= SMALL_BYTES:
                self._known[payload] = steps
        return steps
