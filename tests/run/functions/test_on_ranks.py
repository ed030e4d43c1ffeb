"""Objects on every rank: made there, called there, dropped there."""

import gc
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.objects import Counter, refused
from support.processes.of_rank import runs_of

module_ranks = runs_of(3, later=[1])


def count_alive(rank):
    """Return a function that tells how many counters this rank has."""
    return lambda: len(Counter.made)


class Background:
    """Works in a thread, between the calls."""

    def __init__(self, rank):
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.done.set)
        self.thread.start()

    def __call__(self):
        self.thread.join()
        return self.done.is_set()


def test_each_rank_keeps_its_own_object(module_ranks):
    counter = synk.on_ranks(Counter, 10)
    assert counter(1) == [(rank, 11) for rank in range(module_ranks)]
    assert counter(5) == [(rank, 16) for rank in range(module_ranks)]


def test_an_object_is_dropped_on_every_rank_with_its_handle(module_ranks):
    gc.collect()
    alive = synk.on_ranks(count_alive)
    before = alive()
    counter = synk.on_ranks(Counter, 0)
    assert alive() == [n + 1 for n in before]
    del counter
    gc.collect()
    assert alive() == before


def test_an_object_that_is_closed_is_dropped_although_its_handle_is_kept(module_ranks):
    counter = synk.on_ranks(Counter, 0)
    counter.close()
    with pytest.raises(synk.SynkStateError, match="do not have this object any more"):
        counter(1)


class Stepper:
    """Calls a function of this rank with its number."""

    def __init__(self, rank, function):
        self.rank, self.function = rank, function

    def __call__(self, fails=False):
        self.function(np.asarray(float(self.rank)))
        if fails:
            raise ValueError("a step failed")


def test_what_functions_of_an_object_update_is_per_rank_after_a_call(module_ranks):
    v, k = pytensor.shared(np.zeros(2), name="v"), pt.dscalar("k")
    add, total = synk.function([], updates=[(v, v + k)], bcast_inputs=[k]), synk.function([], v.sum())
    both = synk.sequence((synk.all_reduce, v), total)
    steps = synk.on_ranks(Stepper, add)
    steps()
    assert refused(total) == (module_ranks > 1)
    np.testing.assert_array_equal(synk.gather(v, nd_up=1)[:, 0], np.arange(module_ranks))
    assert both() == pytest.approx(np.arange(module_ranks).mean() * 2)
    assert not refused(total)
    with pytest.raises(ValueError, match="a step failed"):
        steps(True)
    assert refused(total) == (module_ranks > 1)
    synk.commit()
    synk.broadcast(v)
    assert not refused(total)


def test_work_goes_on_between_calls(module_ranks):
    background = synk.on_ranks(Background)
    assert background() == [True] * module_ranks


def test_an_error_of_an_object_leaves_run_and_objects_usable(module_ranks):
    counter = synk.on_ranks(Counter, 0)
    with pytest.raises(ValueError, match="rank 0 has no step"):
        counter(None)
    assert counter(1) == [(rank, 1) for rank in range(module_ranks)]
    with pytest.raises(TypeError, match="missing"):
        synk.on_ranks(Counter)


def test_what_is_given_to_many_calls_is_kept_once(module_ranks):
    data = synk.data(np.ones(2))
    add = synk.on_ranks(lambda rank: lambda array, other: float((array + other).sum()))
    for _ in range(3):
        assert add(data, data) == [4] * module_ranks
    assert add._referenced == [data]


def test_an_object_whose_code_was_changed_since_is_refused(module_ranks):
    def make(rank, scale=2):
        return lambda: scale * rank

    twice = synk.on_ranks(make)
    assert twice() == [2 * rank for rank in range(module_ranks)]
    make.__defaults__ = (3,)
    with pytest.raises(synk.SynkStateError, match="synk.on_ranks makes another"):
        twice()
    assert synk.on_ranks(make)() == [3 * rank for rank in range(module_ranks)]
