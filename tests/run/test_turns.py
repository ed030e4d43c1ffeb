"""One call at a time, also after a signal handler's exception in the middle of leaving."""

import threading

import pytest

from synk.errors import SynkStateError
from synk.run.turns import Turn, Turns


class GaveUp(Exception):
    pass


def nothing():
    pass


def take(turns, label="f", begin=nothing, end=nothing):
    with turns.take(label, begin, end):
        return turns.label


def refused(turns):
    with pytest.raises(SynkStateError, match="g was called in the middle of f"):
        take(turns, "g")


def in_a_thread(work):
    told = []
    thread = threading.Thread(target=lambda: told.append(work()), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return told[0]


def test_calls_in_the_middle_of_a_call_are_refused():
    turns = Turns()
    with turns.take("f", nothing, nothing):
        refused(turns)
        assert turns.mine()
        assert not in_a_thread(turns.mine)
    assert not turns.mine()
    assert take(turns, "g") == "g"


def test_a_turn_that_is_refused_is_left():
    turns = Turns()

    def refuse():
        raise GaveUp

    with pytest.raises(GaveUp):
        take(turns, begin=refuse)
    with pytest.raises(GaveUp):
        take(turns, end=refuse)
    assert in_a_thread(lambda: take(turns)) == "f"


@pytest.mark.parametrize("done", ["nothing", "label"])
def test_a_turn_that_was_left_in_part_is_nobody_s(monkeypatch, done):
    turns, leave = Turns(), Turn._leave

    def interrupted(turn):
        if done == "label":
            turns.label = turns.frame = None
        raise GaveUp

    monkeypatch.setattr(Turn, "_leave", interrupted)
    with pytest.raises(GaveUp):
        take(turns)
    monkeypatch.setattr(Turn, "_leave", leave)
    assert not turns.mine()
    assert take(turns, "g") == "g"
    assert in_a_thread(lambda: take(turns, "h")) == "h"  # the lock is free again


def test_a_closed_run_has_no_turns():
    turns = Turns()
    turns.closed = True
    with pytest.raises(SynkStateError, match="closed"):
        take(turns)


def test_deadlines_are_each_thread_s_own():
    turns = Turns(5.0)
    with turns.timeout(2.0):
        assert turns.seconds == 2.0
        assert in_a_thread(lambda: turns.seconds) == 5.0
        with turns.timeout(None):
            assert turns.seconds is None
        assert turns.seconds == 2.0
    assert turns.seconds == 5.0
