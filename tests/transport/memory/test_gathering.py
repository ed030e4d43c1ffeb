"""Memory that is used again, but never while somebody holds it; rows gathered beside other work."""

import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from support.slow import examples
from synk.transport.memory import gathering
from synk.transport.memory.gathering import (
    AHEAD_BYTES,
    MOST_BLOCKS,
    SMALL_BYTES,
    Gatherer,
    RowMemory,
    RowsToGather,
)
from synk.values.rows import SelectedRows, select

LARGE = (SMALL_BYTES // 8 + 10,)
F8 = np.dtype("f8")


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def gatherer():
    made = Gatherer()
    yield made
    made.close()


# --- rooms -------------------------------------------------------------------------------------------


def test_free_buffers_are_used_again():
    room = RowMemory()
    first = address(room(LARGE, F8))
    assert {address(room(LARGE, F8)) for _ in range(5)} == {first}
    assert address(room((LARGE[0] * 2, 1), np.dtype("f4"))) == first


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[3:5],
        lambda array: array[::2].reshape(1, -1).T,
        lambda array: array.view("u1"),
        memoryview,
    ],
    ids=["itself", "part", "view of a view", "other dtype", "memoryview"],
)
def test_buffers_in_use_are_left_alone(hold):
    room = RowMemory()
    array = room(LARGE, F8)
    array[:] = 7
    held = hold(array)
    del array
    for _ in range(4):
        room(LARGE, F8)[:] = 8
    assert (np.asarray(held).reshape(-1).view("f8") == 7).all()


def test_no_more_than_two_batches_are_kept():
    room = RowMemory()
    held = [room(LARGE, F8) for _ in range(5)]
    assert len({address(array) for array in held}) == 5
    assert len(room._blocks) == MOST_BLOCKS


def test_a_single_large_batch_is_not_kept_for_small_ones():
    room = RowMemory()
    room((10 * LARGE[0],), F8)
    room(LARGE, F8)
    assert [memory.nbytes for memory in room._blocks] == [8 * LARGE[0]]


@pytest.mark.parametrize("shape", [(0,), (0, 10**6), (10**6, 0), (3, 4)])
def test_few_bytes_need_no_room(shape):
    assert RowMemory()(shape, F8) is None


@examples(30, 100, st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 5)), max_size=20))
def test_what_is_held_never_changes(steps):
    room, held = RowMemory(), {}
    for number, (factor, keep, drop) in enumerate(steps):
        array = room((factor * LARGE[0],), F8)
        array[:] = number
        if keep:
            held[number] = array[number:]
        held.pop(drop, None)
        assert all((array == old).all() for old, array in held.items())


# --- rows --------------------------------------------------------------------------------------------


@examples(30, 100, st.data(), st.integers(1, 30))
def test_rows_in_a_room_are_those_of_numpy(data, length):
    array = np.random.default_rng(length).random((length, 3))
    batch = data.draw(st.lists(st.integers(-length, length - 1), max_size=40))
    start = data.draw(st.integers(0, len(batch)))
    rows = select(batch, length).part(start, len(batch))

    def room(shape, dtype):
        return np.empty(shape, dtype)

    expected = array[np.array(batch, int)][start:]
    for source in (array, np.asfortranarray(array), array[:, ::2], array[::-1], array > 0.5):
        wanted = expected if source is array else source[np.array(batch, int)][start:]
        np.testing.assert_array_equal(rows.of(source, room), wanted)
        np.testing.assert_array_equal(rows.of(source), wanted)


def test_rows_go_where_the_room_says():
    target = np.empty((2, 3))
    array = np.arange(12.0).reshape(4, 3)
    assert select([3, 0], 4).of(array, lambda shape, dtype: target) is target
    assert target.tolist() == [[9, 10, 11], [0, 1, 2]]


# --- ahead of the next call ----------------------------------------------------------------------------


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(gathering, "AHEAD_BYTES", 0)


def source(array, batch):
    return RowsToGather(array, select(batch, len(array)).kept(), RowMemory())


def test_gathered_rows_are_there_at_use(gatherer, any_size):
    one, two = np.arange(20.0).reshape(10, 2), np.arange(10)
    gatherer.start(3, 1, {0: source(one, [4, 2]), 2: source(two, [7, 7, 1])})
    there = gatherer.take(3, 1)
    assert {position: array.tolist() for position, array in there.items()} == {
        0: [[8, 9], [4, 5]],
        2: [7, 7, 1],
    }
    assert gatherer.take(3, 1) == {}  # once


@pytest.mark.parametrize(("function", "token"), [(3, 2), (3, 0), (4, 1)])
def test_rows_for_another_call_are_not_used(gatherer, any_size, function, token):
    gatherer.start(3, 1, {0: source(np.arange(5), [4, 2])})
    assert gatherer.take(function, token) == {}


def test_a_call_that_does_not_ask_frees_what_was_gathered(gatherer, any_size):
    gatherer.start(3, 1, {0: source(np.arange(5), [4, 2])})
    gatherer.take(3, 0)
    assert gatherer.take(3, 1) == {}


def test_the_list_of_rows_may_change_meanwhile(gatherer, any_size):
    listed = np.array([3, 1])
    rows = SelectedRows(0, 2, listed).kept()
    listed[:] = 0
    gatherer.start(1, 1, {0: RowsToGather(np.arange(5), rows, RowMemory())})
    assert gatherer.take(1, 1)[0].tolist() == [3, 1]


def test_errors_of_gathering_are_raised_at_use(gatherer, any_size):
    gatherer.start(1, 1, {0: RowsToGather(np.arange(2), SelectedRows(0, 1, np.array([5.5])), RowMemory())})
    with pytest.raises(TypeError):
        gatherer.take(1, 1)
    assert gatherer.take(1, 1) == {}


def test_no_thread_is_no_reason_to_fail(gatherer, any_size, monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    gatherer.start(1, 1, {0: source(np.arange(5), [4, 2])})
    assert gatherer.take(1, 1) == {}
    monkeypatch.undo()


def test_close_ends_the_thread_and_a_later_start_makes_another(gatherer, any_size):
    before = set(threading.enumerate())
    gatherer.close()
    for token in (1, 2):
        gatherer.start(1, token, {0: source(np.arange(5), [4, 2])})
        (thread,) = set(threading.enumerate()) - before
        assert gatherer.take(1, token)[0].tolist() == [4, 2]
        gatherer.close()
        assert not thread.is_alive()


def test_few_rows_are_left_to_the_call(gatherer):
    large = np.zeros((5, AHEAD_BYTES // 8))
    gatherer.start(1, 1, {0: source(np.arange(5), [4, 2]), 1: source(large, [3])})
    assert list(gatherer.take(1, 1)) == [1]
    before = set(threading.enumerate())
    gatherer.close()
    gatherer.start(1, 2, {0: source(np.arange(5), [4, 2])})
    assert gatherer.take(1, 2) == {}
    assert set(threading.enumerate()) < before  # there was nothing to start one for


def test_forget_frees_what_was_kept_for_a_function(gatherer, any_size):
    mine, others = gatherer.memory_of(1, 0), gatherer.memory_of(2, 0)
    assert gatherer.memory_of(1, 0) is mine
    gatherer.start(1, 1, {0: source(np.arange(5), [4, 2])})
    gatherer.forget(1)
    assert gatherer.take(1, 1) == {}
    assert gatherer.memory_of(1, 0) is not mine
    assert gatherer.memory_of(2, 0) is others
