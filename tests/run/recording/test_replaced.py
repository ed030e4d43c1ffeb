import numpy as np
import pytest

from synk.run.recording.replaced import ReplacedMethods
from synk.transport.comm import LoneCommunicator


class Counter:
    """An object with a method to replace."""

    def count(self):
        return 1


def test_methods_are_put_back_one_from_under_the_other():
    counter, first, second = Counter(), ReplacedMethods(), ReplacedMethods()
    first.replace(counter, "count", lambda plain=counter.count: 10 * plain())
    second.replace(counter, "count", lambda plain=counter.count: plain() + 5)
    assert counter.count() == 15
    second.put_back()
    assert counter.count() == 10
    first.put_back()
    first.put_back()
    assert counter.count() == 1
    assert vars(counter) == {}


def test_other_objects_keep_their_methods():
    replaced = ReplacedMethods()
    replaced.replace(Counter(), "count", lambda: 7)
    assert Counter().count() == 1


@pytest.mark.parametrize("op", ["sum", "max"])
def test_every_collective_is_watched_until_it_is_put_back(op):
    seen = []

    def watch(name, method):
        def watched(array, *others):
            seen.append((name, *others))
            return method(array, *others)

        return watched

    communicator, replaced, array = LoneCommunicator(), ReplacedMethods(), np.arange(3.0)
    replaced.watch_collectives(communicator, watch)
    assert np.array_equal(communicator.all_reduce(array, op), array)
    communicator.reduce(array, op)
    communicator.broadcast(array)
    communicator.all_gather(array)
    communicator.gather(array)
    named = [("all_reduce", op), ("reduce", op), ("broadcast",), ("all_gather",), ("gather",)]
    assert seen == named
    replaced.put_back()
    communicator.all_reduce(array, op)
    assert seen == named
