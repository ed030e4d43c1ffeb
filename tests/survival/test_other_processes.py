"""Workers and children of the script may not use the run: everything public says so."""

import gc
import os
import sys
import warnings

import pytest

import synk
from support.processes.of_rank import asking
from support.processes.world import MASTER, STALE, World, not_refused, seen, still_right
from support.slow import slow


@pytest.fixture(autouse=True)
def files_are_written_to_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused_in_a_worker():
    if os.getpid() == MASTER:
        return 0
    [stale] = STALE
    wrong = not_refused([*World(open_run=False).verbs(), *stale.all(facts=False)])
    synk.close()  # a worker cannot end the run
    print(*wrong, sep="\n", file=sys.stderr)
    return len(wrong)


def test_in_a_worker(ranks):
    ranks(2)
    # Workers inherit what was made in an earlier run; a Data or function of theirs does not reach them.
    STALE.append(World())
    synk.close()
    try:
        ranks(3)
        assert asking(refused_in_a_worker)().tolist() == [0, 0, 0]
        still_right(World())
    finally:
        STALE.clear()


def fork_here():
    if os.getpid() == MASTER:
        return 0
    wrong = not_refused([("fork", lambda: synk.fork(2))])
    synk.close()
    return len(wrong)


def test_a_worker_does_not_fork_a_run_of_its_own(ranks):
    ranks(2)
    assert asking(fork_here)().tolist() == [0, 0]


def in_a_child(check):
    """Run ``check()`` in a fork of this process; return the names it returns."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(read)
            wrong = check()
            os.write(write, "\n".join(wrong).encode() or b"nothing")
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return [] if said == "nothing" else (said or "it died").split("\n")


@pytest.mark.parametrize("generations", [slow(1), 2])
def test_in_a_child_of_the_script(ranks, generations):
    ranks(2)
    world = World()
    facts = [seen(call()) for _, call in world.all(facts=True)]

    def check():
        wrong = not_refused(
            [
                *world.verbs(),
                *world.all(facts=False),
                ("fork", lambda: synk.fork(2)),
                ("turn", synk.turn("test").__enter__),
            ],
            "not the master",
        )
        wrong += ["facts"] * ([seen(call()) for _, call in world.all(facts=True)] != facts)
        synk.close()
        world.data = world.function = world.sequence = None
        gc.collect()  # nor do finalizers of a child tell the workers anything
        return wrong

    assert in_a_child(check if generations == 1 else lambda: in_a_child(check)) == []
    still_right(world)


@pytest.mark.slow
def test_a_child_may_fork_a_run_of_its_own_where_none_is_open(ranks):
    ranks(2)
    world = World()
    synk.close()

    def check():
        synk.fork(2)
        still_right(World())
        wrong = not_refused(world.all(facts=False))
        synk.close()
        return wrong

    assert in_a_child(check) == []
    ranks(2)
    still_right(World())
