"""Deadlines count from when they were made."""

import time

import pytest

from synk.transport.commands.deadline import Deadline


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_deadline_has_passed_after_its_seconds(clock):
    deadline = Deadline("f", 2.0)
    assert not deadline.has_passed()
    clock[0] += 1.9
    assert not deadline.has_passed()
    assert not Deadline("g", 2.0).has_warned
    clock[0] += 0.1
    assert deadline.has_passed()


def test_without_seconds_it_never_passes(clock):
    deadline = Deadline("f")
    clock[0] += 1e9
    assert not deadline.has_passed()
