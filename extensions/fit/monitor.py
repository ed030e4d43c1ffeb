"""The metric by which callbacks tell better epochs from worse ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synk.values.checks import checked_count


@dataclass(frozen=True)
class Monitor:
    """A metric, of which smaller values are better, or larger ones.

    Raises ValueError if the mode is neither "min" nor "max", or `min_delta` negative.
    """

    name: str
    mode: str = "min"
    min_delta: float = 0.0  # by which a value must be better to count

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f'mode={self.mode!r} is neither "min" nor "max"')
        if self.min_delta < 0:
            raise ValueError(f"min_delta={self.min_delta} is negative")

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether a value is better than another; anything but NaN is better than None."""
        if than is None:
            return value == value
        return value < than - self.min_delta if self.mode == "min" else value > than + self.min_delta


class Patience:
    """Counts epochs that are not better than the best before them."""

    def __init__(self, monitor: Monitor, patience: int):
        advice = "pass how many epochs may be no better"
        self._monitor, self._patience = monitor, checked_count("patience", patience, advice=advice)
        self.reset()

    def reset(self) -> None:
        """Forget all epochs noted so far."""
        self.best: float | None = None
        self.waited = 0  # epochs

    @property
    def is_over(self) -> bool:
        """Return whether the last ``patience`` epochs were all no better than the best before them."""
        return self.waited >= self._patience

    def note(self, value: float) -> bool:
        """Note the value of an epoch, and return `is_over`."""
        if self._monitor.is_better(value, self.best):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.is_over

    def state(self) -> dict[str, Any]:
        """Return plain values to go on from."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` has returned."""
        self.best, self.waited = state["best"], state["waited"]
