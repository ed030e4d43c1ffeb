"""Objects on every rank when a worker dies, after a restart, and when the run ends."""

import os
import signal
import weakref

import pytest

import synk


class Counter:
    """Counts its calls, and ends rank 1 if it is asked to."""

    def __init__(self, rank):
        self.rank, self.count = rank, 0

    def __call__(self, fatal=False):
        if fatal and self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return self.count


def test_objects_end_with_the_workers_of_a_run(ranks):
    ranks(2)
    counter = synk.on_ranks(Counter)
    assert counter() == [1, 1]
    with pytest.raises(synk.WorkerDied, match="rank 1"):
        counter(True)
    with pytest.raises(synk.WorkerDied):
        counter()
    synk.restart()
    with pytest.raises(synk.SynkStateError, match=r"synk\.on_ranks makes another"):
        counter()
    assert synk.on_ranks(Counter)() == [1, 1]


NOTED = weakref.WeakSet()


class Noted:
    """An object that is noted as long as it is there."""

    def __init__(self, rank):
        NOTED.add(self)

    def __call__(self):
        pass


def test_objects_of_the_script_s_own_rank_end_with_the_run(ranks):
    ranks(1, device="cpu")
    kept = synk.on_ranks(Noted)
    assert len(NOTED) == 1
    synk.close()
    assert len(NOTED) == 0
    assert kept
