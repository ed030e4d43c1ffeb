"""What was measured, what it is compared with, and what is asked of it.

Comparison -> rows -> Section (a table) -> report
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from synk.bench.pairs import Comparison, Spread, in_units

MEDIAN = "median"  # the column of the figure itself


class Asked(NamedTuple):
    """A bound on a figure, or on one of its ratios."""

    limit: float
    column: str = MEDIAN
    at_least: bool = False

    def met(self, row: Row) -> bool:
        """Return whether the median keeps to the bound."""
        found = (row.value if self.column == MEDIAN else row.ratios[self.column]).median
        return found >= self.limit if self.at_least else found <= self.limit

    def text(self, unit: str) -> str:
        """Return the bound for reading."""
        sign = "≥" if self.at_least else "≤"
        if self.column == MEDIAN:
            return f"{sign} {in_units(self.limit) if unit == 's' else f'{self.limit:g} {unit}'}"
        return f"{sign} {self.limit:g} {self.column}"


class Row(NamedTuple):
    """One figure."""

    name: str
    value: Spread
    unit: str  # "s", or "%" of a core
    ratios: dict[str, Spread]  # by column
    asked: Asked | None = None


def once(value: float) -> Spread:
    """Return the spread of a value that was measured once."""
    return Spread(value, value, value)


class Section(NamedTuple):
    """Figures that belong together."""

    title: str
    rows: list[Row]


def rows(
    comparison: Comparison,
    columns: Mapping[str, Callable[[str], Spread]],
    asked: Mapping[str, Asked],
) -> list[Row]:
    """Make a row of each candidate.

    Parameters
    ----------
    comparison : Comparison
    columns : mapping of str to callable
        For each column of ratios, its heading and ``ratio(name)``.
    asked : mapping of str to Asked
        By candidate; of those that did not take part, nothing is asked.
    """
    return [
        Row(
            name,
            comparison.spread(name),
            "s",
            {heading: ratio(name) for heading, ratio in columns.items()},
            asked.get(name),
        )
        for name in comparison.seconds
    ]
