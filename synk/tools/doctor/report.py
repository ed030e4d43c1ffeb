"""Print findings as a table for people, or as JSON for programs.

findings -> table, as_json, or Examination, which a notebook shows
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

from synk.tools.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, Level

MARKS = {OK: "ok", NOTE: "note", WARNING: "WARNING", PROBLEM: "PROBLEM"}
COLOURS = {OK: "32", NOTE: "36", WARNING: "33", PROBLEM: "1;31"}  # of SGR, ECMA-48
STYLES = {WARNING: "background: #f4b942; color: black", PROBLEM: "background: #b3261e; color: white"}
NARROWEST = 24  # characters for the text of a finding, however narrow the terminal is


def table(findings: Sequence[Finding], width: int, coloured: bool) -> str:
    """Return a table of the findings, the most severe last, where they are seen, and a summary line.

    Its lines have ``width`` characters.
    """
    ordered = sorted(findings, key=lambda finding: finding.level)  # stable: checks stay together
    marks = max(map(len, MARKS.values()))
    subjects = max((len(finding.subject) for finding in ordered), default=0)
    lines = [line for finding in ordered for line in _rows(finding, marks, subjects, width, coloured)]
    return "\n".join([*lines, "", summary(findings)])


def _rows(finding: Finding, marks: int, subjects: int, width: int, coloured: bool) -> list[str]:
    margin = marks + subjects + 4
    room = max(NARROWEST, width - margin)
    mark = MARKS[finding.level].ljust(marks)
    if coloured:
        mark = f"\033[{COLOURS[finding.level]}m{mark}\033[0m"
    text = _wrapped(finding.found, room)
    if finding.remedy:
        text += _wrapped(finding.remedy, room, "-> ")
    first = f"{mark}  {finding.subject.ljust(subjects)}  {text[0]}"
    return [first, *(" " * margin + line for line in text[1:])]


def _wrapped(text: str, room: int, lead: str = "") -> list[str]:
    # A command or a path that is broken over lines cannot be copied.
    return textwrap.wrap(
        text,
        room,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def summary(findings: Sequence[Finding]) -> str:
    """Return one line: ``31 checks: 28 ok, 2 notes, 1 warning, no problem``."""
    counts = Counter(finding.level for finding in findings)
    parts = [_counted(counts[level], level.name.lower()) for level in (NOTE, WARNING, PROBLEM)]
    return ", ".join([f"{_counted(len(findings), 'check')}: {counts[OK]} ok", *parts])


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}" + ("s" if count > 1 else "")


@dataclass(frozen=True, repr=False)
class Examination:
    """All findings of an examination: ``print`` it, or let a notebook show it as a table."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> str:
        """The highest level of the findings: "ok", "note", "warning" or "problem"."""
        return worst(self.findings).name.lower()

    def __str__(self) -> str:
        return table(self.findings, width=100, coloured=False)

    def __repr__(self) -> str:
        return f"<Examination: {summary(self.findings)}>"

    def _repr_html_(self) -> str:
        """Return a table for a notebook, the most severe findings first."""
        rows = "".join(map(_html_row, sorted(self.findings, key=lambda finding: -finding.level)))
        return (
            f'<div style="overflow-x: auto"><table><caption>{summary(self.findings)}</caption>'
            f"<tbody>{rows}</tbody></table></div>"
        )


def _html_row(finding: Finding) -> str:
    remedy = f"<br><b>{escape(finding.remedy)}</b>" if finding.remedy else ""
    return (
        f'<tr><td style="{STYLES.get(finding.level, "")}">{MARKS[finding.level]}</td>'
        f'<th scope="row">{escape(finding.subject)}</th>'
        f'<td style="text-align: left">{escape(finding.found)}{remedy}</td></tr>'
    )


def as_json(findings: Sequence[Finding]) -> str:
    """Return an object with the ``worst`` level and the ``findings``, in the order of the checks."""
    rows = [{**asdict(finding), "level": finding.level.name.lower()} for finding in findings]
    return json.dumps({"worst": worst(findings).name.lower(), "findings": rows}, indent=2)


def worst(findings: Sequence[Finding]) -> Level:
    """Return the highest level of the findings."""
    return max((finding.level for finding in findings), default=OK)
