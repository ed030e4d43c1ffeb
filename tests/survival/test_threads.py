"""Other threads of the script call everything public, one after the other."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.processes.of_rank import asking
from support.processes.world import MASTER, World, still_right
from synk.run.session.session import Session


@pytest.fixture(autouse=True)
def files_are_written_to_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def in_threads(works):
    """Run each of ``works`` in a thread, changing often; return what they raised."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error.with_traceback(None))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    finally:
        sys.setswitchinterval(before)
    return errors


def test_from_other_threads_the_results_are_right(ranks):
    ranks(2)
    world = World()
    v = pytensor.shared(np.ones(4), name="shared by all")
    expected_pids = synk.pids()

    def reader(number):
        # Of all ranks, or of one: whatever others do meanwhile, no value is half changed.
        for _ in range(8):
            assert synk.pids() == expected_pids
            assert synk.get_shapes(v) == [(4,), (4,)]
            assert synk.get_lengths(v) == [4, 4]
            assert len(set(synk.get_value(number % 2, v))) == 1
            assert len(set(synk.gather(v).reshape(-1))) == 1
            assert len(set(synk.reduce(v, "max", in_place=False))) == 1

    def writer(number):
        for _ in range(8):
            synk.broadcast(v, np.full(4, float(number)))
            synk.all_reduce(v)
            own = pytensor.shared(np.full(2, float(number)), name=f"own {number}")
            synk.all_reduce(own, "sum")
            assert (synk.gather(own) == 2 * number).all()
            synk.set_value(1, own, np.zeros(2))
            assert synk.gather(own).tolist() == [[2 * number] * 2, [0, 0]]
            synk.scatter(own, np.arange(5.0))
            assert synk.get_lengths(own) == [3, 2]
            synk.all_gather(own)
            assert synk.gather(own).tolist() == [[0, 1, 2, 3, 4]] * 2

    def caller(number):
        for round_ in range(8):
            values = np.full(10 + number, float(round_))
            data = synk.data(values)
            x = pt.vector("x")
            f = synk.function([x], (x.sum(), "sum"))
            both = synk.sequence(f, (synk.all_reduce, v))
            assert f(data) == f(values) == f.as_pytensor(values) == both(data) == values.sum()
            assert f.build_inputs(values).shape == values.shape
            data.set_length(5)
            assert (data[:] == round_).all()
            data.free_memory()
            assert data.shape == (0,)
            assert world.function(world.data) == 6

    works = [(reader, 1), (reader, 2), (writer, 3), (writer, 4), (caller, 5), (caller, 6)]
    assert in_threads([lambda work=work, number=number: work(number) for work, number in works]) == []
    still_right(world)


@pytest.mark.slow
def test_a_function_that_another_thread_drops_is_not_distributed(ranks, monkeypatch):
    ranks(2)
    world, doomed = World(), [synk.function([], pt.constant(1.0))]
    turn = Session.turn

    def late(session, label):
        if label == "distribute":
            doomed.clear()  # as another thread may, whose turn is before this one
            gc.collect()
        return turn(session, label)

    monkeypatch.setattr(Session, "turn", late)
    synk.distribute()
    still_right(world)


def test_closing_while_another_thread_calls(ranks):
    ranks(2)
    slow, told = asking(wait_here), []
    slow()

    def call():
        try:
            told.append(slow().tolist())
        except synk.SynkStateError:
            told.append("closed")

    def close():
        time.sleep(0.1)
        synk.close()

    assert in_threads([call, close]) == []
    assert told in ([[0, 0]], ["closed"])


def wait_here():
    """Take a while, on the master."""
    wake = time.monotonic() + 0.3 * (os.getpid() == MASTER)
    while time.monotonic() < wake:
        time.sleep(0.01)
    return 0
