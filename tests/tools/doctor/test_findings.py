"""The findings of checks, also of those that fail or hang; and the report of all of them."""

import json
import re
import time

from synk.tools.doctor import report
from synk.tools.doctor.finding import Finding, Level, examined, grade

# --- findings --------------------------------------------------------------------------------------


def test_the_first_complaint_that_applies_counts():
    complaints = (False, Level.PROBLEM, "no"), (True, Level.NOTE, "this"), (True, Level.PROBLEM, "late")
    assert grade("disk", "full", *complaints) == Finding(Level.NOTE, "disk", "full", "this")
    assert grade("disk", "empty") == Finding(Level.OK, "disk", "empty")


def test_a_check_that_fails_is_a_finding():
    def spinning_disk():
        raise ZeroDivisionError("no disk")

    found = examined(spinning_disk)
    assert (found.level, found.subject) == (Level.WARNING, "spinning disk")
    assert "ZeroDivisionError: no disk" in found.found


def test_a_check_that_lacks_a_package_refers_to_it():
    def needy():
        import surely_not_installed  # noqa: F401

    found = examined(needy)
    assert found.level is Level.NOTE
    assert "surely_not_installed" in found.found


def test_a_check_that_hangs_is_a_finding():
    def stuck():
        try:
            time.sleep(60)
        except OSError:  # as a module that mistakes the alarm for an error of a file
            return Finding(Level.OK, "stuck", "fine")

    found = examined(stuck, seconds=0.05)
    assert (found.level, found.found) == (Level.WARNING, "could not be checked within 0.05 s")


# --- the report ------------------------------------------------------------------------------------


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


def test_json_keeps_the_order():
    answer = json.loads(report.as_json(FINDINGS))
    assert answer["worst"] == "problem"
    assert [finding["subject"] for finding in answer["findings"]] == ["disk", "fan", "lamp"]
    assert answer["findings"][1] == {"level": "ok", "subject": "fan", "found": "turns", "remedy": ""}
