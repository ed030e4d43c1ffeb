"""What a check says: how bad it is, what it is about, what was found, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad a finding is."""

    OK = 0
    NOTE = 1  # works; something to know
    WARNING = 2  # works, but slowly or not for everything
    PROBLEM = 3  # does not work


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Attributes
    ----------
    level : Level
    subject : str
        What was looked at, in two or three words.
    found : str
    remedy : str
        A command or a setting; empty where there is nothing to do.
    """

    level: Level
    subject: str
    found: str
    remedy: str = ""


def grade(subject: str, found: str, *complaints: tuple[bool, Level, str]) -> Finding:
    """Return the finding of the first complaint ``(applies, level, remedy)`` that applies, else OK."""
    for applies, level, remedy in complaints:
        if applies:
            return Finding(level, subject, found, remedy)
    return Finding(Level.OK, subject, found)
