"""Calls that are made on a thread and may be left behind."""

import threading

import pytest

from synk.gpu.comm.nccl_link import watched


def never():
    raise AssertionError("looked")


def unused(result):
    raise AssertionError(f"{result} was given up")


def test_what_a_call_returns_or_raises():
    assert watched(lambda: 7, lambda: None, unused, 5) == 7
    with pytest.raises(KeyError, match="x"):
        watched(lambda: {}["x"], lambda: None, unused, 5)


def test_a_call_that_ends_in_time_is_not_looked_after():
    assert watched(lambda: threading.current_thread().name, never, unused, 5) == "synk NCCL link"


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_is_left_behind_is_given_up_when_it_ends(fails):
    may_end, given_up = threading.Event(), threading.Event()
    results = []

    def call():
        may_end.wait(5)
        if fails:
            raise ValueError
        return 3

    def look():
        raise InterruptedError

    def give_up(result):
        results.append(result)
        given_up.set()

    with pytest.raises(InterruptedError):
        watched(call, look, give_up, 0.01)
    assert results == []
    may_end.set()
    assert given_up.wait(5)
    assert results == [None if fails else 3]
    for thread in threading.enumerate():
        if thread.name == "synk NCCL link":
            thread.join(5)


def test_a_call_that_ends_while_looking_fails_is_given_up_here():
    ended = threading.Event()

    def look():
        ended.set()
        for thread in threading.enumerate():
            if thread.name == "synk NCCL link":
                thread.join(5)
        raise InterruptedError

    results = []
    with pytest.raises(InterruptedError):
        watched(lambda: ended.wait(5), look, results.append, 0.01)
    assert results == [True]
