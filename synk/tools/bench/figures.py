"""Show figures, and the bounds that they should keep, as tables and as JSON.

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
        """Return whether the median of the figure, or of its ratio, keeps the bound."""
        found = (row.value if self.column == MEDIAN else row.ratios[self.column]).median
        return found >= self.limit if self.at_least else found <= self.limit

    def text(self, unit: str) -> str:
        """Return the bound as text."""
        sign = "≥" if self.at_least else "≤"
        if self.column == MEDIAN:
            return f"{sign} {in_units(self.limit) if unit == 's' else f'{self.limit:g} {unit}'}"
        return f"{sign} {self.limit:g} {self.column}"


class Row(NamedTuple):
    """One measured figure, its ratios to other candidates, and the bound on it."""

    name: str
    value: Spread
    unit: str  # "s", or "%" of a core
    ratios: dict[str, Spread]  # by column
    asked: Asked | None = None


class Section(NamedTuple):
    """A titled table of figures that were measured together."""

    title: str
    rows: list[Row]


def rows(
    comparison: Comparison,
    columns: Mapping[str, str],
    asked: Mapping[str, Asked],
) -> list[Row]:
    """Return a row for each candidate.

    ``columns`` maps the heading of each column of ratios to the candidate that times are divided by;
    ``asked`` maps candidates to bounds, and may have candidates that did not take part.
    """
    found = []
    for name, times in comparison.seconds.items():
        ratios = {heading: comparison.ratio(name, to=reference) for heading, reference in columns.items()}
        found.append(Row(name, spread(times), "s", ratios, asked.get(name)))
    return found


def table(section: Section) -> str:
    """Return a section as a heading and a table of reStructuredText."""
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
    """Return a ratio as text, with its quartiles; ratios span six orders of magnitude, so three digits."""
    low, median, high = map(three_digits, ratio)
    return median if low == high else f"{median} ({low}–{high})"


def _verdict(row: Row) -> str:
    if row.asked is None:
        return ""
    return f"{row.asked.text(row.unit)}: {'yes' if row.asked.met(row) else 'no'}"


def plain(section: Section) -> dict[str, Any]:
    """Return a section as an object for JSON: medians and quartiles, times in seconds."""
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
