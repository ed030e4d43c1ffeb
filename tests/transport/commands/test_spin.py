"""How long a rank spins follows from its last waits."""

import itertools
import os

import pytest

from synk.transport.commands import spin
from synk.transport.commands.spin import (
    LONG_SECONDS,
    MOST_SKIPPED,
    PAUSE_SECONDS,
    SHORT_SECONDS,
    Spin,
    leave_core,
    looks_in,
)

LONG = 0.01
MEASURED = spin.seconds_a_look


@pytest.fixture(autouse=True)
def a_look_takes_a_microsecond(monkeypatch):
    monkeypatch.setattr(spin, "seconds_a_look", lambda: 1e-6)


def waits(spins, seconds, count):
    """Return the looks with which so many waits began, each of which slept for ``seconds``."""
    begun = []
    for _ in range(count):
        begun.append(spins.looks)
        spins.missed(seconds)
    return begun


def test_a_wait_begins_with_looks():
    assert Spin().looks == looks_in(SHORT_SECONDS) == 201


def test_ranks_that_share_cores_never_spin():
    assert waits(Spin(pays=False), 1e-6, 300) == [1] * 300


def test_long_waits_are_slept_through_more_and_more_of_them():
    begun = waits(Spin(), LONG, 2000)
    trials = [number for number, looks in enumerate(begun) if looks > 1]
    apart = [second - first - 1 for first, second in itertools.pairwise(trials)]
    assert apart[:8] == [1, 3, 7, 15, 31, 63, MOST_SKIPPED, MOST_SKIPPED]
    assert set(apart[8:]) <= {MOST_SKIPPED}


def test_where_many_trials_failed_the_next_is_a_long_one():
    begun = waits(Spin(), LONG, 2000)
    trials = [looks for looks in begun if looks > 1]
    assert set(trials[:7]) == {looks_in(SHORT_SECONDS)}
    assert set(trials[7:]) == {looks_in(LONG_SECONDS)}


def test_trials_that_find_the_word_end_the_doubt():
    spins = Spin()
    waits(spins, LONG, 2 + 4)
    assert (spins.looks, spins.doubted) == (201, True)
    for _ in range(3):
        assert spins.doubted
        spins.hit()
    assert not spins.doubted
    assert [looks > 1 for looks in waits(spins, LONG, 4)] == [True, False, True, False]


def test_a_word_that_was_there_already_is_no_reason_to_spin():
    spins = Spin()
    waits(spins, LONG, 1)
    spins.hit()
    assert (spins.looks, spins.doubted) == (1, True)


def test_a_pause_of_the_script_tells_nothing():
    spins = Spin()
    spins.missed(2 * PAUSE_SECONDS)
    assert (spins.looks, spins.doubted) == (201, False)


def test_a_look_takes_less_than_a_wake_up():
    assert 0 < MEASURED(looks=100) < 10e-6


# --- other cores ---------------------------------------------------------------------------------------


@pytest.fixture
def cores():
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("there is one core only")
    choose = os.sched_setaffinity  # tests replace it
    yield before
    choose(0, before)


def test_a_thread_leaves_its_core_and_may_come_back(cores, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(set(cores)))
    leave_core()
    others, after = asked
    assert len(others) == len(cores) - 1
    assert after == cores


def test_a_thread_that_may_not_choose_stays(cores, monkeypatch):
    def refuse(pid, cores):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    leave_core()


def test_it_moves_where_a_word_came_just_after_the_looks(monkeypatch):
    left = []
    monkeypatch.setattr(spin, "leave_core", lambda: left.append(True))
    spins = Spin(moves=True)
    waits(spins, 20e-6, 2)  # the second does not spin
    assert len(left) == 1
    waits(spins, LONG, 1)
    waits(Spin(), 20e-6, 3)
    assert len(left) == 1
