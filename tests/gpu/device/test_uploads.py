"""Rows on their way to a GPU, on streams that carry out copies as late as they may."""

import gc
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cupy import stand_in
from synk.gpu.device.input_buffers import InputBuffer, Streams
from synk.gpu.device.uploads import Request, Uploader
from synk.values.rows import SelectedRows, select

TABLE = np.random.default_rng(0).normal(size=(50, 3))


pytestmark = pytest.mark.usefixtures("any_size")


@pytest.fixture
def made(cupy):
    """Return a function that makes a uploader, which is closed after the test."""
    uploaders = []

    def make(threads=1):
        computing = cupy.cuda.Stream(non_blocking=True)
        uploaders.append(Uploader(cupy, computing, computing.use, threads, nullcontext()))
        computing.use()
        return uploaders[-1]

    yield make
    for uploader in uploaders:
        uploader.close()


@pytest.fixture
def uploader(made):
    return made()


def order(batch, key=0, array=TABLE):
    return Request(key, array, select(batch, len(array)))


def computed(array):
    """Return the values that a kernel finds in an array of the device; wait for nothing but the kernel."""
    return stand_in.asnumpy(array * 1)


# --- one after the other -------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [[4, 2, 2, -1, 7, 8, 9], slice(3, 40), [5]], ids=["list", "slice", "one"])
def test_programs_read_the_rows(made, threads, batch):
    buffers = made(threads).buffers(1, 0)
    for key in range(4):
        there = buffers.take(order(batch, key, TABLE + key))
        np.testing.assert_array_equal(computed(there), (TABLE + key)[batch])


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "c16", "?", "i8"])
def test_any_dtype_and_shape(uploader, dtype):
    array = (np.arange(120).reshape(10, 3, 4) % 7).astype(dtype)
    there = uploader.buffers(1, 0).take(order([9, 0, 3], array=array))
    assert there.dtype == array.dtype
    np.testing.assert_array_equal(computed(there), array[[9, 0, 3]])


def test_without_the_wait_for_the_copy_other_numbers_are_read(uploader, monkeypatch):
    """Show that the tests of numbers here can fail."""
    monkeypatch.setattr(InputBuffer, "hand_out", lambda buffer: buffer._array)
    there = uploader.buffers(1, 0).take(order([4, 2], array=TABLE + 17))  # numbers that were nowhere before
    assert not np.array_equal(computed(there), (TABLE + 17)[[4, 2]])


def test_page_locked_memory_is_written_when_the_host_knows_that_it_was_copied(uploader, machine):
    buffer = uploader.buffer()

    def gather(array, parts, targets):
        assert machine.host_knows(buffer._copied)
        return uploader.gather(array, parts, targets)

    for key in range(3):
        buffer.load(TABLE, select([4, key], 50), gather)
        buffer.hand_out()
        assert not machine.host_knows(buffer._copied)
        buffer.retire()


def test_rows_that_are_read_are_not_copied_over(uploader, monkeypatch):
    def run(buffers):
        for key in range(5):
            (buffers.take(order([4, 2], key)) * 1).sum()

    run(uploader.buffers(1, 0))
    monkeypatch.setattr(InputBuffer, "retire", lambda buffer: None)
    with pytest.raises(AssertionError, match="another stream may still read"):
        run(uploader.buffers(2, 0))


def test_the_host_never_waits_for_a_copy_that_can_be_waited_for_there(uploader, machine):
    buffers = uploader.buffers(1, 0)
    buffers.take(order([4, 2]))
    buffers.start(order([4, 3], 1))
    buffers._pending.done.result()
    assert any(entry[0] == "copy" for entry in uploader._streams.copying.queue)
    buffers.take(order([4, 3], 1))
    assert not [call for call in machine.log if call[0] == "waited for"]


# --- ahead ---------------------------------------------------------------------------------------------


def test_rows_that_were_started_are_not_brought_twice(uploader, machine):
    buffers = uploader.buffers(1, 0)
    buffers.start(order([4, 2], "mine"))
    buffers._pending.done.result()
    count = machine.n_copies
    np.testing.assert_array_equal(computed(buffers.take(order([4, 2], "mine"))), TABLE[[4, 2]])
    assert machine.n_copies == count


def test_rows_for_another_call_are_not_used(uploader):
    buffers = uploader.buffers(1, 0)
    buffers.take(order([0, 1], 0))
    buffers.start(order([4, 2], 1))
    np.testing.assert_array_equal(computed(buffers.take(order([9, 8], 2))), TABLE[[9, 8]])
    np.testing.assert_array_equal(computed(buffers.take(order([4, 2], 1))), TABLE[[4, 2]])


def test_what_is_started_twice_leaves_the_rows_that_are_read(uploader):
    buffers = uploader.buffers(1, 0)
    given = buffers.take(order([0, 1], 0))
    for key in (1, 2, 3):
        buffers.start(order([4, 2], key, TABLE + key))
    buffers._pending.done.result()
    assert given.data.ptr not in [entry[1] for entry in uploader._streams.copying.queue if entry[0] == "copy"]
    np.testing.assert_array_equal(computed(given), TABLE[[0, 1]])
    np.testing.assert_array_equal(computed(buffers.take(order([4, 2], 3, TABLE + 3))), (TABLE + 3)[[4, 2]])


def test_what_fails_ahead_fails_again_where_it_is_told(uploader):
    buffers = uploader.buffers(1, 0)
    bad = Request(1, TABLE, SelectedRows(0, 1, np.array([5.5])))
    buffers.start(bad)
    with pytest.raises(TypeError):
        buffers.take(bad)
    np.testing.assert_array_equal(computed(buffers.take(order([4, 2], 2))), TABLE[[4, 2]])


def test_no_thread_is_no_reason_to_fail(made, monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    buffers = made(threads=3).buffers(1, 0)
    monkeypatch.setattr(threading.Thread, "start", refused)
    for key in range(3):
        buffers.start(order(slice(0, 30), key))
        np.testing.assert_array_equal(computed(buffers.take(order(slice(0, 30), key))), TABLE[:30])


def test_copies_ordered_in_any_order_give_the_rows_of_numpy(made):
    batches = st.lists(st.integers(-50, 49), min_size=1, max_size=20) | st.builds(slice, st.integers(1, 50))
    steps = st.lists(st.tuples(batches, st.booleans(), st.booleans(), st.integers(0, 1)), max_size=12)

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(steps)
    def run(steps):
        uploader = made()
        for key, (batch, ahead, finish, position) in enumerate(steps):
            buffers = uploader.buffers(1, position)
            there = buffers.take(order(batch, key))
            if ahead and key + 1 < len(steps):
                following, _, _, position = steps[key + 1]
                uploader.buffers(1, position).start(order(following, key + 1))
            np.testing.assert_array_equal(computed(there), TABLE[batch])
            if finish:
                uploader.finish()
        uploader.close()

    run()


# --- memory --------------------------------------------------------------------------------------------


def test_two_buffers_serve_all_calls_and_grow_where_needed(uploader, machine):
    buffers = uploader.buffers(1, 0)
    for key, n_rows in enumerate([2, 9, 5, 1, 9, 9]):
        there = buffers.take(order(list(range(n_rows)), key))
        np.testing.assert_array_equal(computed(there), TABLE[:n_rows])
        assert len(machine.locked) <= 2
    assert sorted(machine.locked.values()) == [9 * 24, 9 * 24]


def test_forgotten_memory_is_freed_after_its_copies(uploader, machine):
    buffers = uploader.buffers(1, 0)
    buffers.take(order([4, 2]))
    buffers.start(order([4, 3], 1))
    del buffers
    uploader.forget(1)
    gc.collect()
    assert machine.locked
    uploader.finish()
    assert not machine.locked


def test_close_with_copies_in_flight_leaves_nothing(uploader, machine):
    before = set(threading.enumerate())
    for position in range(3):
        buffers = uploader.buffers(1, position)
        buffers.take(order([4, 2]))
        buffers.start(order([4, 3], 1))
    del buffers
    uploader.close()
    assert not machine.locked
    assert set(threading.enumerate()) <= before
    uploader.close()
    np.testing.assert_array_equal(computed(uploader.buffers(1, 0).take(order([4, 2]))), TABLE[[4, 2]])


def test_no_room_is_told_and_the_next_call_goes_on(uploader, machine):
    buffers = uploader.buffers(1, 0)
    machine.room = 100
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        buffers.take(order(list(range(20))))
    buffers.start(order(list(range(20)), 1))
    np.testing.assert_array_equal(computed(buffers.take(order([4, 2], 2))), TABLE[[4, 2]])
    machine.room = None
    np.testing.assert_array_equal(computed(buffers.take(order(list(range(20)), 3))), TABLE[:20])


def test_streams_are_those_of_the_device(cupy):
    computing = cupy.cuda.Stream(non_blocking=True)
    uploader = Uploader(cupy, computing, computing.use, 1, nullcontext())
    assert len(cupy.cuda.machine.streams) == 2  # nothing is made before it is needed
    uploader.buffer()
    assert isinstance(uploader._streams, Streams)
    assert uploader._streams.computing is computing
    uploader.close()
