"""In the middle of a call, everything public is right, waits or is refused."""

import gc
import os
import signal
import time
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import OfRank, asking
from support.processes.world import MASTER, STALE, World, not_refused, still_right
from support.slow import slow


@pytest.fixture(autouse=True)
def files_are_written_to_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# These do not go to the workers: in the middle of a call they say what is.
READS = {"synk.timeout", "synk.pids", "synk.n_ranks", "synk.topology", "synk.function"}
READS |= {"Data.data", "Data.__getitem__", "Data.__setitem__", "Data.__array__"}
READS |= {"Data.__dlpack__", "Data.__dlpack_device__", "Data.set_length", "Data.set_shape", "Data.set_value"}
READS |= {"Data.free_memory"}  # heard of at the end of the call


def ring_here():
    """Send the master a signal while it computes."""
    return ring(os.getpid() == MASTER)


def ring_there():
    """Send the master a signal while the workers compute."""
    return ring(os.getpid() != MASTER)


def ring(here):
    # A timer might ring before the call has begun: who computes knows that it has.
    if here:
        time.sleep(0.1)
        os.kill(MASTER, signal.SIGALRM)
        time.sleep(0.2)
    return 0


class Dropped:
    """Something that a finalizer hangs on."""


def by_signal(action, call):
    before = signal.signal(signal.SIGALRM, lambda *_: action())
    try:
        return call()
    finally:
        signal.signal(signal.SIGALRM, before)


def by_finalizer(action, call):
    gc.disable()  # else it may come too early
    try:
        dropped = Dropped()
        dropped.itself = dropped  # garbage, once it is let go
        weakref.finalize(dropped, action).atexit = False
        del dropped
        return by_signal(gc.collect, call)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("wait", "how"),
    [
        (ring_here, by_finalizer),
        (ring_there, by_signal),
        slow(ring_here, by_signal),
        slow(ring_there, by_finalizer),
    ],
)
def test_in_the_middle_of_a_call(ranks, how, wait):
    ranks(2)
    world, slow = World(), asking(wait)
    by_signal(lambda: None, slow)  # compiled
    wrong = ["nothing was tried"]
    calls = [*world.verbs(), *world.all(facts=False)]

    def action():
        refused = [(name, call) for name, call in calls if name not in READS | NOT_YET]
        wrong[:] = not_refused(refused, "in the middle of")
        wrong.extend(name for name, call in calls if name == "synk.pids" and call() != pids)
        wrong.extend(["Data"] * (world.data[:].tolist() != [0, 1, 2, 3]))

    pids = synk.pids()
    assert how(action, slow).tolist() == [0, 0]
    assert wrong == []
    still_right(world)


# Refused once `Commands.post` looks whether a command runs.
NOT_YET = {"synk.data", "synk.sequence", "Function.build_inputs", "Function.profile"}


def make_data():
    if os.getpid() == MASTER:
        STALE.append(synk.data(np.full(4000, 7.0)))
    return 0


def test_data_made_in_the_middle_of_a_call_is_refused(ranks):
    ranks(2)
    v = pytensor.shared(np.ones(100_000), name="v")
    trigger = pt.scalar("trigger")
    f = synk.function([], (OfRank(make_data)(trigger), "gather"), [trigger])
    # The collective makes memory that the workers attach in the middle of the command.
    both = synk.sequence(f, (synk.reduce, v, "sum"))
    try:
        with pytest.raises(synk.SynkStateError, match="in the middle of"):
            both(0.0)
        still_right(World())
    finally:
        STALE.clear()


@pytest.mark.parametrize("wait", [slow(ring_here), ring_there])
def test_closing_in_the_middle_of_a_call_is_refused(ranks, wait):
    ranks(2)
    world, slow, wrong = World(), asking(wait), ["nothing was tried"]
    by_signal(lambda: None, slow)  # compiled

    def action():
        wrong[:] = not_refused([("synk.close", synk.close)], "in the middle of")

    assert by_signal(action, slow).tolist() == [0, 0]
    assert wrong == []
    still_right(world)
