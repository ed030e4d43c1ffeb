"""Shared variables are stored in shared memory from their first collective on."""

import gc
from functools import partial
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.slow import slow
from synk.extensions import updates
from synk.extensions.train import make_train_function
from synk.run.arrays.shared_storage import BLOCK_BYTES, divide_among_blocks
from synk.transport.memory.segments import StagingBuffers
from synk.transport.memory.shm import Segment
from synk.values.errors import SharedMemoryFull

N_RANKS = 2


@pytest.fixture(autouse=True)
def run():
    """A run of its own for each test: what is mapped is counted."""
    gc.collect()
    gc.freeze()  # `mapped` need not look through all that there was before
    synk.fork(N_RANKS)
    yield
    synk.close()


def mapped():
    """Count the segments that this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("/dev/shm/")


def storage(variable):
    return variable.get_value(borrow=True)


def is_in_shared_memory(variable):
    return is_shared(storage(variable))


def is_shared(array):
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
    assert not is_in_shared_memory(variable)
    collective(variable)
    assert is_in_shared_memory(variable)
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
        assert is_in_shared_memory(variable)
        assert storage(variable).tolist() == [[N_RANKS] * 3] * rows
        assert mapped() == before


def test_without_room_a_variable_stays_where_it_is(variable, monkeypatch):
    real, refused = Segment.create, []

    def create(nbytes):
        if len(refused) < 1:
            refused.append(nbytes)
            raise SharedMemoryFull("full")
        return real(nbytes)

    monkeypatch.setattr(Segment, "create", create)
    synk.all_reduce(variable, "sum")
    assert refused
    assert not is_in_shared_memory(variable)
    np.testing.assert_array_equal(synk.gather(variable), [2 * np.arange(6.0).reshape(2, 3)] * N_RANKS)


def test_forgotten_variable_frees_its_memory(variable):
    before = mapped()
    other = pytensor.shared(np.ones(5), name="other")
    synk.all_reduce(other)
    assert mapped() == before + 1
    del other
    gc.collect()
    synk.all_reduce(variable)
    assert mapped() == before + 1


@pytest.mark.parametrize("together", [True, False])
def test_a_block_is_freed_with_its_last_variable(together):
    before = mapped()
    variables = [pytensor.shared(np.ones(n), name="v") for n in (3, 5)]
    large = pytensor.shared(np.ones(BLOCK_BYTES // 8), name="large")
    synk.all_reduce([variables[0], large, variables[1]])
    assert mapped() == before + 2
    del large
    gc.collect()
    assert mapped() == before + 1
    if together:
        variables.clear()
    else:
        del variables[0]
        gc.collect()
        assert mapped() == before + 1
        synk.broadcast(variables[0], np.ones(400))  # moves to another block
        assert mapped() == before + 1
        variables.clear()
    gc.collect()
    assert mapped() == before


def test_one_variable_of_another_shape_is_refused_among_many(variable):
    others = [pytensor.shared(np.full(3, float(n)), name=f"v{n}") for n in range(3)]
    many = [*others, variable]
    synk.all_reduce(many, "max")
    synk.set_value(1, variable, np.ones((4, 3)))
    gathered = synk.gather(many, nd_up=0)
    np.testing.assert_array_equal(
        gathered[-1], np.concatenate([np.arange(6.0).reshape(2, 3), np.ones((4, 3))])
    )
    with pytest.raises(synk.CollectiveMismatch, match=r"rank 0: .*\[2, 3\]; rank 1: .*\[4, 3\]"):
        synk.all_reduce(many, "max")
    synk.broadcast(many)
    np.testing.assert_array_equal(synk.gather(others[2]), [[2.0] * 3] * N_RANKS)


def test_rooms_are_apart_and_large_variables_alone():
    sizes = {1: [8, 100], 2: [BLOCK_BYTES, 8], 3: [0, 0], 4: [BLOCK_BYTES // 2] * 2, 5: [64, 64]}
    blocks = list(divide_among_blocks(sizes))
    assert [list(rooms) for _, rooms in blocks] == [[2], [4], [1, 3, 5]]
    for nbytes, rooms in blocks:
        stretches = sorted(room for of_ranks in rooms.values() for room in of_ranks)
        ends = [offset + size for offset, size in stretches]
        assert [offset for offset, _ in stretches] == [0, *ends[:-1]]
        assert ends[-1] == nbytes
        for identity, of_ranks in rooms.items():
            assert all(
                size <= room.nbytes < size + 65 for size, room in zip(sizes[identity], of_ranks, strict=True)
            )


def test_close_gives_variables_their_own_memory_back(variable):
    synk.all_reduce(variable, "sum")
    synk.close()
    assert not is_in_shared_memory(variable)
    assert mapped() == 0
    assert variable.get_value().tolist() == [[0, 2, 4], [6, 8, 10]]
    synk.fork(N_RANKS)
    synk.all_reduce(variable, "sum")
    assert variable.get_value().tolist() == [[0, 4, 8], [12, 16, 20]]


@pytest.mark.parametrize("n_ranks", [3, slow(1)])
def test_close_gives_variables_that_live_once_memory_of_their_own(variable, n_ranks):
    def step_of():
        loss = pt.sqr(variable).sum() / 2
        return make_train_function(loss, [variable], [], updates.sgd, learning_rate=0.5, shard="state")

    step_of()()
    assert is_in_shared_memory(variable)
    synk.close()
    assert storage(variable).flags.owndata
    assert mapped() == 0
    np.testing.assert_array_equal(storage(variable), np.arange(6.0).reshape(2, 3) / 2)
    synk.fork(n_ranks)
    step_of()()
    np.testing.assert_array_equal(synk.gather(variable), [np.arange(6.0).reshape(2, 3) / 4] * n_ranks)


def test_only_commands_write_to_shared_storage(variable):
    variable.set_value(variable.get_value() + 1)
    synk.sequence((synk.all_reduce, variable))  # tells all ranks where it is stored
    session = synk.run.session.current.session("test")
    stored = session.memory.variables.storage(session.memory.shared.identify(variable))
    assert not any(array.any() for array in stored)
    synk.broadcast(variable, np.full((2, 3), 4.0))
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 2, 3), 4.0))


# --- nothing is copied on the way -----------------------------------------------------------------------


@pytest.fixture
def unstaged(monkeypatch):
    """Refuse every buffer in which values would wait, where all ranks share memory."""

    def refuse(*args):
        raise AssertionError("staged")

    session = synk.run.session.current.session("test")
    if not session.on_machines:
        monkeypatch.setattr(StagingBuffers, "put_all", refuse)
        monkeypatch.setattr(session._rank.communicator, "_fill_slots", refuse)


def test_what_ranks_have_is_read_where_it_is_stored(variable, unstaged):
    synk.all_reduce(variable, "sum")
    total = 2 * np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(synk.gather(variable), [total] * N_RANKS)
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), np.concatenate([total] * N_RANKS))
    for rank in range(N_RANKS):
        np.testing.assert_array_equal(synk.get_value(rank, variable), total)
    np.testing.assert_array_equal(synk.reduce(variable, "sum", in_place=False), 2 * total)
    synk.reduce(variable, "sum")
    np.testing.assert_array_equal(synk.gather(variable), [2 * total, total])
    synk.all_gather(variable)
    np.testing.assert_array_equal(synk.get_value(0, variable), np.concatenate([2 * total, total]))


def test_what_is_read_is_the_callers_own(variable):
    synk.all_reduce(variable, "sum")
    results = [
        synk.gather(variable),
        synk.get_value(0, variable),
        synk.get_value(1, variable),
        synk.reduce(variable, in_place=False),
    ]
    before = [result.copy() for result in results]
    synk.all_reduce(variable, "sum")
    for result, kept in zip(results, before, strict=True):
        np.testing.assert_array_equal(result, kept)
        assert not is_shared(result)


@pytest.mark.parametrize("moved", [True, False])
def test_values_of_a_sequence_are_those_of_their_step(variable, moved):
    if moved:
        synk.all_reduce(variable, "max")
    grow = synk.function([], updates=[(variable, variable + 1)])
    alone = synk.sequence(grow, (synk.get_value, 1, variable), grow)
    np.testing.assert_array_equal(alone()[0], np.arange(6.0).reshape(2, 3) + 1)
    step = synk.sequence(
        grow,
        (synk.gather, variable),
        grow,
        (synk.get_value, 1, variable),
        grow,
        partial(synk.reduce, variable, "sum", in_place=False),
        grow,
    )
    start = np.arange(6.0).reshape(2, 3) + 2
    for number in range(5):
        gathered, one, total = step()
        now = start + 4 * number
        np.testing.assert_array_equal(gathered, [now + 1] * N_RANKS)
        np.testing.assert_array_equal(one, now + 2)
        np.testing.assert_array_equal(total, N_RANKS * (now + 3))


@pytest.mark.parametrize("rows", [0, 1, 4, 7])
def test_shards_of_any_length_are_stored_in_shared_memory(variable, unstaged, rows):
    values = np.arange(3.0 * rows).reshape(rows, 3)
    synk.scatter(variable, values)
    assert synk.get_lengths(variable) == [(rows + 1) // 2, rows // 2]
    assert is_in_shared_memory(variable)
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), values)
    synk.scatter(variable, synk.data(values), batch=slice(None))
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), values)
    synk.all_gather(variable)
    np.testing.assert_array_equal(synk.gather(variable), [values] * N_RANKS)


def test_listed_rows_go_to_where_a_variable_is_stored(variable):
    values, order = np.arange(15.0).reshape(5, 3), [4, 0, 0, 3, -1]
    for given in (values, synk.data(values)):
        synk.scatter(variable, given, batch=order)
        assert is_in_shared_memory(variable)
        array = storage(variable)
        np.testing.assert_array_equal(synk.gather(variable, nd_up=0), values[order])
        synk.scatter(variable, given, batch=order[::-1])
        assert storage(variable) is array
        np.testing.assert_array_equal(synk.gather(variable, nd_up=0), values[order[::-1]])
        synk.set_value(1, variable, given, batch=[2])
        np.testing.assert_array_equal(synk.get_value(1, variable), values[[2]])
        np.testing.assert_array_equal(synk.get_value(0, variable), values[order[::-1]][:3])


def test_values_are_written_where_a_variable_is_stored(variable, unstaged):
    synk.broadcast(variable, np.full((4, 3), 5.0))
    array, before = storage(variable), mapped()
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 4, 3), 5.0))
    for rank in range(N_RANKS):
        synk.set_value(rank, variable, np.full((4, 3), float(rank)))
    assert storage(variable) is array
    assert mapped() == before
    np.testing.assert_array_equal(synk.get_value(1, variable), np.full((4, 3), 1.0))
    synk.all_reduce(variable, "sum")
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 4, 3), 1.0))


def test_a_variables_own_memory_may_be_what_is_handed_out(variable):
    other = pytensor.shared(np.zeros((2, 3)), name="w")
    synk.all_reduce([variable, other], "max")
    synk.scatter(variable, storage(variable)[::-1])
    np.testing.assert_array_equal(synk.gather(variable, nd_up=0), [[3, 4, 5], [0, 1, 2]])
    synk.broadcast(variable, np.arange(6.0).reshape(2, 3))
    synk.broadcast([variable, other], [np.full((2, 3), 9.0), storage(variable)])
    np.testing.assert_array_equal(synk.gather(variable), np.full((N_RANKS, 2, 3), 9.0))
    np.testing.assert_array_equal(synk.gather(other), [np.arange(6.0).reshape(2, 3)] * N_RANKS)


def test_values_wait_for_their_step_in_a_sequence(variable):
    seen = pytensor.shared(np.zeros((2, 3)), name="seen")
    synk.all_reduce([variable, seen], "max")
    values = np.full((2, 3), 100.0)
    step = synk.sequence(
        synk.function([], updates=[(seen, 1 * variable)]),
        (synk.broadcast, variable, values),
        synk.function([], updates=[(variable, variable + 1)]),
    )
    for number in range(3):
        step()
        expected = np.arange(6.0).reshape(2, 3) if number == 0 else values + 1
        np.testing.assert_array_equal(synk.gather(seen), [expected] * N_RANKS)
        np.testing.assert_array_equal(synk.gather(variable), [values + 1] * N_RANKS)


def test_without_room_values_are_staged(variable, monkeypatch):
    synk.all_reduce(variable, "max")

    def refuse(self, nbytes, rooms):
        raise SharedMemoryFull("full")

    monkeypatch.setattr(synk.run.arrays.shared_storage.SharedStorage, "_allocate", refuse)
    for values in (np.arange(15.0).reshape(5, 3), np.arange(24.0).reshape(8, 3)):
        synk.scatter(variable, values)
        np.testing.assert_array_equal(synk.gather(variable, nd_up=0), values)
        synk.broadcast(variable, values)
        np.testing.assert_array_equal(synk.gather(variable), [values] * N_RANKS)
        synk.set_value(1, variable, values[1:])
        np.testing.assert_array_equal(synk.get_value(1, variable), values[1:])
        synk.broadcast(variable)
        synk.reduce(variable, "sum")
        np.testing.assert_array_equal(synk.gather(variable), [N_RANKS * values, values])
