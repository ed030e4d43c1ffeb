import os
from types import SimpleNamespace

import numpy as np
import pytest

from synk.run.rank.row_inputs import RowInput
from synk.run.rank.shards import Shards
from synk.run.recording import recorder as module
from synk.run.recording.recorder import RecordedRows, Recorder
from synk.run.recording.spans import GATHERING
from synk.values.rows import SelectedRows

ARRAY = np.arange(20.0).reshape(10, 2)
LISTED = np.array([7, 2, 2])


class Worker:
    """Something with a method to watch."""

    def double(self, value, fails=False):
        if fails:
            raise ValueError(value)
        return 2 * value


@pytest.fixture
def recorder():
    return Recorder(SimpleNamespace(rank=3))


def watched(recorder):
    worker = Worker()
    recorder.watch(worker, "double", "kind", lambda value: (f"double {value}", value))
    return worker


def test_each_call_is_a_span_also_one_that_raises(recorder):
    worker = watched(recorder)
    assert worker.double(4) == 8
    with pytest.raises(ValueError, match="5"):
        worker.double(5, fails=True)
    track = recorder.track()
    assert (track.rank, track.pid, track.n_dropped) == (3, os.getpid(), 0)
    assert [(kind, name, about) for kind, name, _, _, about in track.spans] == [
        ("kind", "double 4", 4),
        ("kind", "double 5", 5),
    ]
    times = [time for _, _, begin, end, _ in track.spans for time in (begin, end)]
    assert [track.begin, *times, track.end] == sorted([track.begin, *times, track.end])


def test_what_was_watched_is_as_it_was_afterwards(recorder):
    worker = watched(recorder)
    assert "double" in vars(worker)
    recorder.unwatch()
    recorder.unwatch()
    assert vars(worker) == {}
    assert worker.double(4) == 8
    assert not recorder.track().spans


def test_the_latest_spans_are_kept_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 10)
    recorder = Recorder(SimpleNamespace(rank=0))
    worker = watched(recorder)
    for value in range(25):
        worker.double(value)
    track = recorder.track()
    assert [about for *_, about in track.spans] == list(range(15, 25))
    assert track.n_dropped == 15


def call(minibatch=(False,), num_slices=1, gathered=0):
    return SimpleNamespace(
        minibatch=minibatch, num_slices=num_slices, gathered=gathered, ahead=None, function=1
    )


def test_rows_that_are_listed_are_gathered_and_rows_in_place_are_not(recorder):
    shards = Shards(0, 1)
    recorder._watch_rows(shards)
    np.testing.assert_array_equal(shards.whole(call(), 0, 3, [ARRAY], LISTED)[0], ARRAY[LISTED])
    shards.whole(call(), 0, 3, [ARRAY], None)
    assert shards.whole(call(num_slices=2), 0, 3, [ARRAY], LISTED) is None
    (listed,) = shards.inputs(call(), SelectedRows(0, 3, LISTED), [ARRAY], LISTED)
    np.testing.assert_array_equal(listed.part(1, 3), ARRAY[LISTED[1:]])
    (in_place,) = shards.inputs(call(), SelectedRows(0, 3), [ARRAY], None)
    np.testing.assert_array_equal(in_place.part(0, 3), ARRAY[:3])
    spans = recorder.track().spans
    assert [(kind, name, about) for kind, name, _, _, about in spans] == [
        (GATHERING, "rows", 3),
        (GATHERING, "rows", 2),
    ]
    recorder.unwatch()
    assert type(shards.inputs(call(), SelectedRows(0, 3, LISTED), [ARRAY], LISTED)[0]) is RowInput


def test_noted_rows_are_rows_like_any_other():
    notes = []
    rows = RecordedRows.of(RowInput(ARRAY, SelectedRows(0, 3, LISTED)), notes.append)
    assert (rows.array is ARRAY, rows.rows.indices is LISTED, rows.room) == (True, True, None)
    plain = RowInput(ARRAY, SelectedRows(0, 3))
    assert RecordedRows.of(plain, notes.append) is plain
