"""Shared variables live in shared memory from their first collective on."""

import gc
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.errors import SharedMemoryFull
from synk.shm import Segment

N_RANKS = 2


@pytest.fixture(autouse=True)
def run():
    """A run of its own for each test: what is mapped is counted."""
    synk.fork(N_RANKS)
    yield
    synk.close()


def mapped():
    """Count the segments that this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


def storage(variable):
    return variable.get_value(borrow=True)


def lives_in_shared_memory(variable):
    array = storage(variable)
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if start <= address < stop:
            return "/dev/shm/" in line
    return False


@pytest.fixture
def variable():
    return pytensor.shared(np.arange(6.0).reshape(2, 3), name="v")


@pytest.mark.parametrize("collective", [synk.all_reduce, synk.broadcast])
def test_first_collective_moves_a_variable_and_no_later_one_does(variable, collective):
    assert not lives_in_shared_memory(variable)
    collective(variable)
    assert lives_in_shared_memory(variable)
    array, before = storage(variable), mapped()
    collective(variable)
    assert storage(variable) is array
    assert mapped() == before
    np.testing.assert_array_equal(array, np.arange(6.0).reshape(2, 3))


def test_updates_keep_a_variable_there(variable):
    synk.all_reduce(variable)
    array = storage(variable)
    step = synk.sequence(
        synk.function([], updates=[(variable, pt.tanh(variable) + 1)]), (synk.all_reduce, variable, "sum")
    )
    expected = np.arange(6.0).reshape(2, 3)
    for _ in range(3):
        step()
        expected = N_RANKS * (np.tanh(expected) + 1)
    assert storage(variable) is array
    for value in synk.gather(variable):
        np.testing.assert_allclose(value, expected, rtol=1e-14)


def test_set_value_is_reduced_and_the_variable_stays(variable):
    synk.all_reduce(variable)
    array = storage(variable)
    for rank in range(N_RANKS):
        synk.set_value(rank, variable, np.full((2, 3), rank + 1.0))
    synk.all_reduce(variable, "sum")
    assert storage(variable) is array
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 2, 3), 3.0))
    with pytest.warns(synk.SynkWarning):
        variable.set_value(np.full((2, 3), 7.0))
    synk.all_reduce(variable, "max")
    assert storage(variable) is array
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 2, 3), 7.0))


def test_variable_of_another_shape_moves_again_and_leaves_nothing(variable):
    synk.all_reduce(variable)
    before = mapped()
    for rows in (5, 1):
        synk.broadcast(variable, np.ones((rows, 3)))
        synk.all_reduce(variable, "sum")
        assert lives_in_shared_memory(variable)
        assert storage(variable).tolist() == [[N_RANKS] * 3] * rows
        assert mapped() == before


def test_shapes_that_differ_are_refused_as_before(variable):
    synk.all_reduce(variable)
    synk.set_value(1, variable, np.ones((4, 3)))
    with pytest.raises(synk.CollectiveMismatch, match=r"rank 0: .*\[2, 3\]; rank 1: .*\[4, 3\]"):
        synk.all_reduce(variable)
    synk.broadcast(variable)
    np.testing.assert_array_equal(synk.gather(variable), [np.arange(6.0).reshape(2, 3)] * N_RANKS)


def test_without_room_a_variable_stays_where_it_is(variable, monkeypatch):
    real, refused = Segment.create, []

    def create(nbytes):
        if nbytes == variable.get_value(borrow=True).nbytes and len(refused) < 1:
            refused.append(nbytes)
            raise SharedMemoryFull("full")
        return real(nbytes)

    monkeypatch.setattr(Segment, "create", create)
    synk.all_reduce(variable, "sum")
    assert refused
    assert not lives_in_shared_memory(variable)
    np.testing.assert_array_equal(synk.gather(variable), [2 * np.arange(6.0).reshape(2, 3)] * N_RANKS)


def test_forgotten_variable_frees_its_memory(variable):
    before = mapped()
    other = pytensor.shared(np.ones(5), name="other")
    synk.all_reduce(other)
    assert mapped() == before + N_RANKS
    del other
    gc.collect()
    synk.all_reduce(variable)
    assert mapped() == before + N_RANKS


def test_close_moves_variables_out(variable):
    synk.all_reduce(variable, "sum")
    synk.close()
    assert not lives_in_shared_memory(variable)
    assert mapped() == 0
    assert variable.get_value().tolist() == [[0, 2, 4], [6, 8, 10]]
    synk.fork(N_RANKS)
    synk.all_reduce(variable, "sum")
    assert variable.get_value().tolist() == [[0, 4, 8], [12, 16, 20]]
