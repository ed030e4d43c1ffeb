"""Figures, the bounds that are asked of them, and the tables and JSON that show both.

Comparison -> rows -> Section -> table (reStructuredText, to paste into a page) or plain (a part of JSON)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from synk.tools.bench.pairs import Comparison, Spread, in_units, spread, three_digits

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


class Section(NamedTuple):
    """Figures that belong together."""

    title: str
    rows: list[Row]


def rows(
    comparison: Comparison,
    columns: Mapping[str, str],
    asked: Mapping[str, Asked],
) -> list[Row]:
    """Return a row for each candidate.

    ``columns`` names, by the heading of each column of ratios, the candidate that times are divided by. Of
    ``asked``, by candidate, those that did not take part are passed over.
    """
    found = []
    for name, times in comparison.seconds.items():
        ratios = {heading: comparison.ratio(name, to=reference) for heading, reference in columns.items()}
        found.append(Row(name, spread(times), "s", ratios, asked.get(name)))
    return found


def table(section: Section) -> str:
    """Return a section as a heading and a table."""
    headings = ["figure", MEDIAN, *section.rows[0].ratios, "asked"]
    heading = [section.title, "-" * len(section.title), ""]
    return "\n".join([*heading, simple_table(headings, [_cells(row) for row in section.rows])])


def simple_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of reStructuredText; the first cell of a row must not be empty."""
    cells = [headings, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _cells(row: Row) -> list[str]:
    value = in_units(row.value.median) if row.unit == "s" else f"{row.value.median:.2g} {row.unit}"
    return [row.name, value, *map(ratio_in_words, row.ratios.values()), _verdict(row)]


def ratio_in_words(ratio: Spread) -> str:
    """Return a ratio with its quartiles; from memcpy to gloo they span six orders of magnitude."""
    low, median, high = map(three_digits, ratio)
    return median if low == high else f"{median} ({low}–{high})"


def _verdict(row: Row) -> str:
    if row.asked is None:
        return ""
    return f"{row.asked.text(row.unit)}: {'yes' if row.asked.met(row) else 'no'}"


def plain(section: Section) -> dict[str, Any]:
    """Return a section as JSON has it: quartiles and medians, times in seconds."""
    return {"title": section.title, "figures": [_plain_row(row) for row in section.rows]}


def _plain_row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        **row.value._asdict(),
        "ratios": {heading: ratio._asdict() for heading, ratio in row.ratios.items()},
        "asked": row.asked and row.asked.text(row.unit),
        "met": row.asked and row.asked.met(row),
    }
