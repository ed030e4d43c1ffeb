"""One call at a time, also after a signal handler's exception in the middle of leaving."""

import signal
import threading

import pytest

from synk.run.session.turns import Turns
from synk.values.errors import SynkStateError


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
        assert turns.is_inside()
        assert not in_a_thread(turns.is_inside)
    assert not turns.is_inside()
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


class Interrupted(Turns):
    """Turns that an exception leaves in part: before ``at`` is set back."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def __setattr__(self, name, value):
        if value is None and name == getattr(self, "at", None):
            self.at = None
            raise GaveUp
        super().__setattr__(name, value)


@pytest.mark.parametrize("at", ["label", "frame"])
def test_a_turn_that_an_exception_interrupts_is_free_again(at):
    turns = Interrupted(at)
    with pytest.raises(GaveUp):
        take(turns)
    assert not turns.is_inside()
    assert take(turns, "g") == "g"
    assert in_a_thread(lambda: take(turns, "h")) == "h"  # the lock is free again


def test_a_turn_is_kept_from_call_to_call_of_one_thread():
    turns, order = Turns(), []
    other = threading.Thread(target=lambda: order.append(take(turns, "other")))
    with turns.keep("kept"):
        order.append(take(turns, "f"))
        other.start()
        with turns.keep("kept again"):
            order.append(take(turns, "g"))
        other.join(0.1)
        order.append(take(turns, "h"))
    other.join(10)
    assert order == ["f", "g", "h", "other"]
    assert in_a_thread(lambda: take(turns)) == "f"  # the lock is free again


def test_handlers_wait_while_a_turn_is_kept():
    def give_up(*_):
        raise GaveUp

    def ring_and_call():
        with turns.keep("kept"):
            signal.raise_signal(signal.SIGALRM)
            done.append(take(turns))

    turns, done = Turns(), []
    before = signal.signal(signal.SIGALRM, give_up)
    try:
        with pytest.raises(GaveUp):
            ring_and_call()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done == ["f"]
    assert in_a_thread(lambda: take(turns)) == "f"


def test_no_turn_is_kept_in_the_middle_of_a_call():
    turns = Turns()
    refused = pytest.raises(SynkStateError, match="kept was called in the middle of f.* when f has returned")
    with turns.take("f", nothing, nothing), refused, turns.keep("kept"):
        pass
    assert in_a_thread(lambda: take(turns)) == "f"


def test_a_closed_run_has_no_turns():
    turns = Turns()
    turns.closed = True
    with pytest.raises(SynkStateError, match="closed"), turns.keep("kept"):
        pass
    with pytest.raises(SynkStateError, match="closed"):
        take(turns)


def test_deadlines_are_each_thread_s_own():
    turns = Turns(5.0)
    with turns.timeout(2.0):
        assert turns.deadline().seconds == 2.0
        assert in_a_thread(lambda: turns.deadline().seconds) == 5.0
        with turns.timeout(None):
            assert turns.deadline().seconds is None
        assert turns.deadline().seconds == 2.0
    assert turns.deadline().seconds == 5.0
