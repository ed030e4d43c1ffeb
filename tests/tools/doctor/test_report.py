"""The report of all findings: for people, and as JSON."""

import json
import re

from synk.tools.doctor import report
from synk.tools.doctor.finding import Finding, Level

FINDINGS = [
    Finding(Level.PROBLEM, "disk", "on fire", "pour water over it, but not too much"),
    Finding(Level.OK, "fan", "turns"),
    Finding(Level.NOTE, "lamp", "dim", "change"),
]


def test_the_worst_comes_last_and_remedies_line_up():
    assert report.table(FINDINGS, 40, coloured=False).splitlines() == [
        "ok       fan   turns",
        "note     lamp  dim",
        "               -> change",
        "PROBLEM  disk  on fire",
        "               -> pour water over it,",
        "                  but not too much",
        "",
        "3 checks: 1 ok, 1 note, no warning, 1 problem",
    ]


def test_colours_change_no_text():
    coloured = report.table(FINDINGS, 40, coloured=True)
    assert "\033[1;31mPROBLEM\033[0m" in coloured
    assert re.sub("\033\\[[0-9;]*m", "", coloured) == report.table(FINDINGS, 40, coloured=False)


def test_a_notebook_shows_the_worst_first_and_text_as_it_is():
    made = report.Examination((*FINDINGS, Finding(Level.OK, "a<b", "x & y")))
    shown = made._repr_html_()
    assert [shown.index(word) for word in ("disk", "lamp", "fan")] == sorted(
        shown.index(word) for word in ("disk", "lamp", "fan")
    )
    assert "on fire<br><b>pour water over it, but not too much</b>" in shown
    assert "a&lt;b" in shown
    assert "x &amp; y" in shown
    assert shown.count("<tr>") == 4
    assert "4 checks: 2 ok, 1 note, no warning, 1 problem" in shown
    assert made.worst == "problem"
    assert str(made) == report.table(made.findings, 100, coloured=False)


def test_json_keeps_the_order():
    answer = json.loads(report.as_json(FINDINGS))
    assert answer["worst"] == "problem"
    assert [finding["subject"] for finding in answer["findings"]] == ["disk", "fan", "lamp"]
    assert answer["findings"][1] == {"level": "ok", "subject": "fan", "found": "turns", "remedy": ""}
