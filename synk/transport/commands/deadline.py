"""The deadline of one command, counted from its start.

Turns.deadline -> Deadline -> Workers.look, while the master waits -> a warning, SynkTimeout
"""

from __future__ import annotations

import time


class Deadline:
    """The time by which a command is to end.

    Attributes
    ----------
    label : str
        The command's name in errors.
    seconds : float, optional
        The time that the command may take; None for any time.
    began : float
        When the command started, by ``time.monotonic()``: when this object was made.
    has_warned : bool
        Whether the script was warned of ranks that keep this command waiting.
    """

    __slots__ = ("began", "has_warned", "label", "seconds")

    def __init__(self, label: str, seconds: float | None = None):
        self.label = label
        self.seconds = seconds
        self.began = time.monotonic()
        self.has_warned = False

    def has_passed(self) -> bool:
        """Return whether the command has taken longer than it may."""
        return self.seconds is not None and time.monotonic() - self.began >= self.seconds
