"""Arrays in two tables of segments, whose memory is as far apart as that of two machines."""

import os
import pickle
from dataclasses import replace
from io import FileIO

import numpy as np
import pytest

from support.transport.parts import nothing
from synk.run.rank.shards import Shards
from synk.transport.commands.mirror import BLOCK_BYTES, Mirror, write
from synk.transport.memory.segments import SegmentTable
from synk.values.machine import Machine
from synk.values.messages import (
    IN_COMMAND,
    Ahead,
    ArrayRef,
    Call,
    Command,
    Compile,
    Readers,
    RowSpan,
    parts_in,
)
from synk.values.rows import SelectedRows


class Machines:
    """The master's segments, those of another machine, and the mirror between them."""

    def __init__(self):
        self.here, self.there = (SegmentTable(nothing, nothing) for _ in range(2))
        self.mirror = Mirror(self.here, [Machine(1, "there", (1, 1))])

    def array(self, n, dtype="f8"):
        """Make an array on both machines; return a reference, and the master's."""
        nbytes = n * np.dtype(dtype).itemsize
        number = self.here.allocate(nbytes)
        assert self.there.allocate(nbytes) == number
        ref = ArrayRef(number, np.dtype(dtype).str, (n,))
        return ref, self.here.array(ref)

    def send(self, *steps):
        """Bring the other machine what it lacks for these steps; return how many blocks that were."""
        (fills,) = pickle.loads(pickle.dumps(self.mirror.fills(Command(1, steps))))
        self.mirror.sent()
        write(fills, self.there)
        return len(fills)

    def agree(self, ref):
        return np.array_equal(self.here.array(ref), self.there.array(ref))

    def close(self):
        self.here.close()
        self.there.close()


@pytest.fixture
def machines():
    machines = Machines()
    yield machines
    machines.close()


def call(*refs):
    """Return a step that reads all of arrays."""
    return Call(1, refs, None, (), None, None, 1)


def test_what_has_changed_is_filled_and_what_has_not_is_not(machines):
    per_block = BLOCK_BYTES // 8
    ref, array = machines.array(3 * per_block + 5)
    array[:] = np.arange(array.size)
    step = call(ref)
    assert machines.send(step) == 4
    assert machines.agree(ref)
    assert machines.send(step) == 0
    array[per_block] = -1  # the first of the second block
    array[-1] = -2
    assert machines.send(step) == 2
    assert machines.agree(ref)


def test_only_what_the_steps_read_is_filled(machines):
    (ref, array), (other, others) = machines.array(10), machines.array(10)
    array[:] = others[:] = 1
    assert machines.send(call(ref)) == 1
    assert machines.agree(ref)
    assert not machines.agree(other)
    assert machines.send(call(ref, other)) == 1
    assert machines.agree(other)


def test_a_part_of_a_segment_is_filled_where_it_lies(machines):
    ref, array = machines.array(100)
    array[:] = 7
    part = ArrayRef(ref.segment, "<f8", (5,), offset=160)
    assert machines.send(call(part)) == 1
    assert np.flatnonzero(machines.there.array(ref)).tolist() == [20, 21, 22, 23, 24]


def test_an_array_without_elements_or_dimensions_is_no_trouble(machines):
    ref, array = machines.array(4)
    array[:] = 3
    assert machines.send(call(ArrayRef(ref.segment, "<f8", (0, 3)))) == 0
    assert machines.send(call(ArrayRef(ref.segment, "<f8", ()))) == 1
    assert machines.there.array(ref)[0] == 3


def test_what_its_owner_vouches_for_is_not_looked_at_again(machines):
    ref, array = machines.array(10)
    stamp = [1]
    machines.here.vouch(ref.segment, lambda: stamp[0])
    array[:] = 1
    assert machines.send(call(ref)) == 1
    array[:] = 2
    assert machines.send(call(ref)) == 0  # it was told that nothing was written
    stamp[0] += 1
    assert machines.send(call(ref)) == 1
    assert machines.agree(ref)


def test_arrays_whose_owner_cannot_vouch_are_compared_each_time(machines):
    """As those that a script may write to, through views that it was handed out."""
    ref, array = machines.array(10)
    stamp = [1]
    machines.here.vouch(ref.segment, lambda: stamp[0])
    machines.send(call(ref))
    stamp[0] = None
    for value in (1, 2):
        array[:] = value
        assert machines.send(call(ref)) == 1
        assert machines.agree(ref)


def test_another_part_of_a_segment_with_the_same_stamp_is_looked_at(machines):
    ref, array = machines.array(100)
    machines.here.vouch(ref.segment, lambda: 1)
    array[:] = 4
    assert machines.send(call(ref._replace(shape=(10,)))) == 1
    assert machines.send(call(ref)) == 1
    assert machines.agree(ref)


def test_what_was_not_sent_is_found_again(machines):
    ref, array = machines.array(10)
    array[:] = 1
    machines.here.vouch(ref.segment, lambda: 1)
    step = call(ref)
    machines.mirror.fills(Command(1, (step,)))  # and then there was ^C
    assert machines.send(step) == 1
    assert machines.agree(ref)


def test_what_is_forgotten_is_filled_again(machines):
    (ref, array), (other, others) = machines.array(10), machines.array(10)
    array[:] = others[:] = 1
    for one in (ref, other):
        machines.here.vouch(one.segment, lambda: 1)
    step = call(ref, other)
    machines.send(step)
    machines.mirror.forget(ref.segment)
    assert machines.send(step) == 1


def test_files_are_left_out(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.ones(10).tobytes())
    table = SegmentTable(nothing, nothing)
    number = table.map_file(FileIO(path, "r"), os.fspath(path), 80, 0, writable=False)
    try:
        step = call(ArrayRef(number, "<f8", (10,)))
        assert Mirror(table, [Machine(1, "there", (1, 1))]).fills(Command(1, (step,))) == [()]
    finally:
        table.close()


def test_arrays_are_found_however_deep_steps_are_nested():
    refs = [ArrayRef(number, "<f8", (3,)) for number in range(5)]
    steps = (call(refs[0], refs[1]), [Compile(((1, 1),)), (call(refs[2]), {"not": "looked at"})])
    listed = Call(1, (refs[3],), RowSpan(0, 4, True), (False,), (RowSpan(0, 1, False),), refs[4], 1)
    readers = Readers(range(1), 1, (0, 0))
    assert [part.ref for part in parts_in((*steps, listed), readers)] == refs


PER_BLOCK = BLOCK_BYTES // 8
MACHINES = [Machine(number, f"h{number}", (2, 1, 2)) for number in (1, 2)]  # the last 1 and 2 of five ranks


class Reader:
    """What two machines get of one array, with a row in each block."""

    def __init__(self, machines, rows):
        self.here, self.ref = machines.here, machines.array(rows * PER_BLOCK)[0]
        self.ref = self.ref._replace(shape=(rows, PER_BLOCK))
        self.array = self.here.array(self.ref)
        self.array[:] = np.arange(self.array.size).reshape(self.array.shape)
        self.there = [np.zeros_like(self.array) for _ in MACHINES]
        self.mirror = Mirror(machines.here, MACHINES)

    def rows(self, batch, pairs=False, told=(0, 0), ahead=None):
        """Return which rows are sent to each machine."""
        step = Call(1, (self.ref,), batch, (pairs,), None, None, 1, ahead=ahead)
        self.last = command = Command(1, (step,), *told)
        sent = self.mirror.fills(command)
        self.mirror.sent()
        for machine, there, fills in zip(MACHINES, self.there, sent, strict=True):
            for fill in fills:
                there.reshape(-1).view("u1")[fill.offset :][: fill.bytes.size] = fill.bytes
            for rows in self.read(machine, step, command):
                assert np.array_equal(there[rows], self.array[rows])
        return [sorted(fill.offset // BLOCK_BYTES for fill in fills) for fills in sent]

    def read(self, machine, step, command):
        """Yield the rows that ranks of a machine do read, a row that stands in, too."""
        batch = step.batch if step.batch.start != IN_COMMAND else RowSpan(command.start, command.stop, False)
        if batch.listed and not step.minibatch[0]:
            return
        for rank in machine.ranks:
            selected = SelectedRows(batch.start, batch.stop)
            (entry,) = Shards(rank, machine.n_ranks).inputs(
                replace(step, ahead=None), selected, [self.array], None
            )
            yield slice(entry.rows.start, entry.rows.stop)
            yield slice(max(entry.rows.stop - 1, 0), max(entry.rows.stop, 1)) if len(self.array) else slice(0)


def test_of_what_is_scattered_in_order_machines_get_their_rows(machines):
    reader = Reader(machines, 10)
    assert reader.rows(RowSpan(0, 10, False)) == [[4, 5], [6, 7, 8, 9]]
    assert reader.rows(RowSpan(0, 10, False)) == [[], []]
    reader.array[4] = reader.array[9] = -1
    assert reader.rows(RowSpan(0, 10, False)) == [[4], [9]]
    assert reader.rows(RowSpan(5, 10, False)) == [[7], []]  # 8 and 9 are there
    assert reader.rows(RowSpan(0, 10, True)) == [[0, 1, 2, 3, 6, 8, 9], [0, 1, 2, 3, 4, 5]]  # any


def test_rows_may_be_told_with_the_command(machines):
    reader = Reader(machines, 10)
    assert reader.rows(RowSpan(IN_COMMAND, IN_COMMAND, False), told=(5, 10)) == [[7], [8, 9]]
    assert reader.rows(RowSpan(IN_COMMAND, IN_COMMAND, False), told=(0, 5)) == [[2], [3, 4]]


def test_rows_that_pair_with_selected_ones_are_counted_from_the_first(machines):
    assert Reader(machines, 10).rows(RowSpan(20, 25, True), pairs=True) == [[2], [3, 4]]


def test_ranks_without_rows_get_the_one_before(machines):
    assert Reader(machines, 10).rows(RowSpan(4, 6, False)) == [[5], [5]]
    assert Reader(machines, 10).rows(RowSpan(4, 4, False)) == [[3], [3]]
    assert Reader(machines, 10).rows(RowSpan(0, 0, False)) == [[0], [0]]


@pytest.mark.parametrize("n", [0, 1, 3, 5, 7, 20])
@pytest.mark.parametrize("start", [0, 1, 6])
@pytest.mark.parametrize("pairs", [False, True])
def test_machines_get_what_their_ranks_read(machines, n, start, pairs):
    Reader(machines, 26).rows(RowSpan(start, start + n, False), pairs)


def test_rows_that_are_gathered_ahead_may_be_any(machines):
    ahead = Ahead(1, RowSpan(0, 5, True))
    assert Reader(machines, 4).rows(RowSpan(0, 4, False), ahead=ahead) == [[0, 1, 2, 3]] * 2


def test_rows_are_looked_at_once_under_a_stamp(machines):
    reader = Reader(machines, 10)
    machines.here.vouch(reader.ref.segment, lambda: 1)
    assert reader.rows(RowSpan(0, 5, False)) == [[2], [3, 4]]
    before = reader.array[:5].copy()
    reader.array[:5] = -1  # nobody was told
    assert [len(fills) for fills in reader.mirror.fills(reader.last)] == [0, 0]
    reader.array[:5] = before
    assert reader.rows(RowSpan(5, 10, False)) == [[7], [8, 9]]


def test_a_write_between_the_looks_for_two_machines_is_seen(machines):
    reader, looks = Reader(machines, 1), []

    def stamp():
        looks.append(len(looks))
        if len(looks) == 4:  # a thread writes before the second command's second look
            reader.array[:] = -1
        return [0, 0, 1, 2, 2, 2][looks[-1]]

    machines.here.vouch(reader.ref.segment, stamp)
    sent = [reader.rows(RowSpan(0, 1, True)) for _ in range(3)]
    assert sent == [[[0], [0]], [[], [0]], [[0], []]]


def test_an_array_that_one_call_reads_whole_is_sent_once(machines):
    reader = Reader(machines, 4)
    rows = Call(1, (reader.ref,), RowSpan(0, 4, False), (False,), None, None, 1)
    fills = reader.mirror.fills(Command(1, (rows, call(reader.ref))))
    assert [len(of_one) for of_one in fills] == [4, 4]
