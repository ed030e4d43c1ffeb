import os

import numpy as np
import pytest

from support.processes import leaks
from synk.transport.memory.segments import GROWTH, SegmentTable, StagingBuffers
from synk.transport.memory.shm import Segment
from synk.values import messages
from synk.values.errors import SharedMemoryFull


class Wire:
    """Stands for the channel: a worker's table at its other end follows what is posted."""

    def __init__(self):
        self.posted = []
        self.worker = SegmentTable()

    def post(self, message, descriptor):
        assert isinstance(message, messages.Attach)
        self.posted.append(message)
        self.worker.attach(message, os.dup(descriptor))

    def release(self, message):
        assert isinstance(message, messages.Detach)
        self.posted.append(message)
        self.worker.drop(message.segment)


@pytest.fixture
def wire():
    wire = Wire()
    yield wire
    wire.worker.close()


@pytest.fixture
def table(wire):
    table = SegmentTable(wire.post, wire.release)
    yield table
    table.close()


@pytest.fixture
def staging(table):
    return StagingBuffers(table)


def allocated(wire):
    return [message.nbytes for message in wire.posted if isinstance(message, messages.Attach)]


def test_later_workers_attach_segments_that_are_kept_attachable(wire):
    table = SegmentTable(wire.post, wire.release, attachable=True)
    number = table.allocate(16)
    ref = messages.ArrayRef(number, "<i8", (2,))
    table.array(ref)[:] = 3, 4
    late = SegmentTable()
    late.attach(wire.posted[0], os.dup(table[number].descriptor))
    assert late.array(ref).tolist() == [3, 4]
    late.close()
    table.close()


def test_every_rank_has_the_same_segment_by_the_same_number(wire, table):
    one, two = table.allocate(80), table.allocate(8)
    assert one != two
    assert wire.posted == [messages.Attach(one, 80), messages.Attach(two, 8)]
    ref = messages.ArrayRef(one, "<f8", (2, 5))
    table.array(ref)[:] = np.arange(10).reshape(2, 5)
    table.array(messages.ArrayRef(two, "<i8", ()))[...] = 7
    np.testing.assert_array_equal(wire.worker.array(ref), np.arange(10.0).reshape(2, 5))
    assert wire.worker.array(messages.ArrayRef(two, "<i8", ())) == 7
    assert table[one].nbytes == wire.worker[one].nbytes == 80


def test_a_released_segment_is_gone_in_every_rank(wire, table):
    before = set(leaks.descriptors())
    number = table.allocate(80)
    table.release(number)
    assert wire.posted[-1] == messages.Detach(number)
    for each in (table, wire.worker):
        with pytest.raises(KeyError):
            each[number]
    assert set(leaks.descriptors()) == before


def test_what_is_dropped_is_closed_whoever_still_looks_at_it(table):
    before = set(leaks.descriptors())
    number = table.allocate(80)
    segment = table[number]
    table.release(number)
    assert set(leaks.descriptors()) == before
    assert segment.nbytes == 80


def test_numbers_are_not_used_again(table):
    one = table.allocate(8)
    table.release(one)
    assert table.allocate(8) != one


def test_dropping_is_local_and_may_be_repeated(wire, table):
    number = table.allocate(8)
    table.drop(number)
    table.drop(number)
    table.drop(99)
    assert wire.worker[number].nbytes == 8
    assert wire.posted == [messages.Attach(number, 8)]


def test_the_descriptor_is_closed_once_it_is_sent(table):
    number = table.allocate(8)
    with pytest.raises(AssertionError, match="no descriptor"):
        _ = table[number].descriptor


def test_without_room_nothing_changes(monkeypatch, wire, table):
    kept = table.allocate(8)

    def refuse(nbytes):
        raise SharedMemoryFull(f"needed {nbytes}")

    monkeypatch.setattr(Segment, "create", refuse)
    with pytest.raises(SharedMemoryFull, match="needed 800"):
        table.allocate(800)
    monkeypatch.undo()
    assert wire.posted == [messages.Attach(kept, 8)]
    assert table.allocate(8) == kept + 1


def test_a_worker_only_follows(wire):
    with pytest.raises(AssertionError, match="only the master allocates"):
        wire.worker.allocate(8)
    with pytest.raises(AssertionError, match="only the master releases"):
        wire.worker.release(1)
    with pytest.raises(OSError, match="no file descriptor left"):
        wire.worker.attach(messages.Attach(1, 8), None)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(12, dtype="i2").reshape(3, 4).T,
        np.arange(12, dtype=">i4")[::-2],
        np.asfortranarray(np.arange(12.0, dtype="f4").reshape(3, 4)),
        np.broadcast_to(np.float32(2), (3, 2)),
        np.array(1.5 + 2j),
        np.zeros((0, 7), "f2"),
        np.array([True, False, True]),
    ],
    ids=["plain", "transposed", "reversed", "fortran", "broadcast", "0-d", "empty", "boolean"],
)
def test_workers_read_the_values_that_are_put(wire, staging, array):
    ref = staging.put(("f", 0), array)
    there = wire.worker.array(ref)
    assert (there.dtype, there.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(there, array)


def test_a_buffer_is_used_again_while_arrays_fit(wire, staging):
    refs = [staging.put(("f", 0), np.full(n, n, "f4")) for n in (10, 10, 3, 0, 10)]
    assert len({ref.segment for ref in refs}) == 1
    assert allocated(wire) == [40]
    assert wire.worker.array(refs[-1]).tolist() == [10.0] * 10


def test_a_buffer_that_is_too_small_is_replaced_by_a_larger_one(wire, staging):
    small, large = (staging.put(("f", 0), np.full(n, n, "u1")) for n in (100, 104))
    assert allocated(wire) == [100, int(GROWTH * 104)]
    assert wire.posted[1] == messages.Detach(small.segment)
    assert wire.worker.array(large).tolist() == [104] * 104
    # There is some room now, so a little more takes no new one.
    assert staging.put(("f", 0), np.zeros(125, "u1")).segment == large.segment


def test_arrays_of_one_key_share_a_segment(wire, staging):
    arrays = [np.arange(n, dtype=dtype) for n, dtype in ((3, "f8"), (5, "u1"), (0, "f4"), (7, "i2"))]
    refs = staging.put_all(("f", 0), arrays)
    assert len(allocated(wire)) == 1
    assert [ref.offset for ref in refs] == [0, 64, 128, 128]
    for ref, array in zip(refs, arrays, strict=True):
        np.testing.assert_array_equal(wire.worker.array(ref), array)
    assert staging.put(("f", 0), np.ones(9)).segment == refs[0].segment


def test_keys_have_buffers_of_their_own(wire, staging):
    one, two = staging.put(("f", 0), np.ones(3)), staging.put(("f", 1), np.zeros(3))
    assert one.segment != two.segment
    assert wire.worker.array(one).tolist() == [1.0] * 3


def test_dropped_buffers_are_freed(wire, staging):
    one, two = staging.put(("f", 0), np.ones(3)), staging.put(("f", 1), np.ones(3))
    staging.drop(("f", 0), ("f", 7))
    assert wire.posted[-1] == messages.Detach(one.segment)
    staging.drop(("f", 0))
    assert len(wire.posted) == 3
    assert wire.worker.array(two).tolist() == [1.0] * 3
    assert staging.put(("f", 0), np.ones(3)).segment not in (one.segment, two.segment)


def test_buffers_go_with_their_owner(wire, staging):
    first, second = [staging.put((owner, i), np.ones(2)) for owner in (1, 2) for i in (0, 1)][::2]
    staging.drop_owned_by(1)
    assert [message.segment for message in wire.posted[4:]] == [first.segment, first.segment + 1]
    assert wire.worker.array(second).tolist() == [1.0] * 2
    staging.drop_owned_by(1)
    assert len(wire.posted) == 6


def test_a_buffer_that_cannot_grow_can_still_be_put(monkeypatch, wire, staging):
    staging.put(("f", 0), np.ones(2))

    def refuse(nbytes):
        raise SharedMemoryFull(f"needed {nbytes}")

    monkeypatch.setattr(Segment, "create", refuse)
    with pytest.raises(SharedMemoryFull):
        staging.put(("f", 0), np.ones(200))
    monkeypatch.undo()
    assert wire.worker.array(staging.put(("f", 0), np.full(2, 3.0))).tolist() == [3.0, 3.0]
