"""The findings of checks, also of those that fail or hang."""

import time

from synk.tools.doctor.finding import Finding, Level, examined, grade


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
