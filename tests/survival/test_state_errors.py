"""Everything public in every state that does not allow it: SynkStateError or the right result, never a hang.

What is tried is read off ``synk.__all__``, `Data` and `Function`, so what is new there is tried as well.
"""

import signal

import numpy as np
import pytest

import synk
from support.processes.world import World, not_refused, seen, still_right
from support.slow import slow


@pytest.fixture(autouse=True)
def files_are_written_to_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_all_that_is_public_is_tried(ranks):
    ranks(2)
    world = World()
    assert len(list(world.verbs())) >= 15
    for facts in (True, False):
        assert len(list(world.all(facts))) >= 12
    # Each works where it is allowed, so what is refused below is not refused for its arguments.
    for name, call in [*world.all(True), *world.all(False), *world.verbs()]:
        if name not in ("synk.function", "synk.data"):  # their arguments would be incomplete
            call()
            world.data.set_value(np.arange(4.0))
            synk.broadcast(world.v, np.ones(4))


def test_before_fork():
    world = World(open_run=False)
    assert not_refused(world.verbs(), "call synk.fork() first") == []
    assert synk.close() is None


@pytest.mark.parametrize(
    "again", [0, slow(1), slow(2)], ids=["closed", "forked again", "forked and closed again"]
)
def test_after_close(ranks, again):
    ranks(2)
    world = World()
    facts = [seen(call()) for _, call in world.all(facts=True)]
    synk.close()
    if again:
        ranks(2)
    if again == 2:
        synk.close()
    assert not_refused(world.all(facts=False), "closed") == []
    assert [seen(call()) for _, call in world.all(facts=True)] == facts
    if again == 1:
        still_right(World())
    else:
        assert not_refused(world.verbs(), "call synk.fork() first") == []
    synk.close()
    synk.close()


def test_forked_twice(ranks):
    ranks(2)
    world = World()
    pids = synk.pids()
    for arguments in ({}, {"n_parallel": 3}, {"device": "cpu"}):
        with pytest.raises(synk.SynkStateError, match="a run is open already"):
            synk.fork(**arguments)
    assert synk.pids() == pids
    still_right(world)


def test_a_turn_without_a_run_only_lets_handlers_wait():
    done = []
    before = signal.signal(signal.SIGALRM, lambda *_: done.append("handler"))
    try:
        with synk.turn("test"):
            signal.raise_signal(signal.SIGALRM)
            done.append("body")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert done == ["body", "handler"]


def test_verbs_work_in_a_turn(ranks):
    ranks(2)
    world = World()
    with synk.turn("test"):
        still_right(world)
        synk.commit()
        synk.restart()
        still_right(world)
        synk.close()
