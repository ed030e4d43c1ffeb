"""Sections for reading and for machines.

Section -> table -> lines for a terminal, which are reStructuredText to paste into a page
        -> plain -> a part of JSON
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk.bench.figures import MEDIAN, Row, Section
from synk.bench.pairs import Spread, in_units, three_digits


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
