import numpy as np
import pytest

from support.cases.trace_events import check, read_trace
from synk.run.recording.spans import COLLECTIVE, COMMAND, COMPUTING, GATHERING, Track, complete_tracks
from synk.run.recording.trace import trace
from synk.values.atomic_write import write_json

SPANS = [
    (GATHERING, "rows", 1_012_000, 1_013_000, 250),
    (COMPUTING, 'größe "x"\\', 1_012_000, 1_020_001, None),
    (COLLECTIVE, "all_reduce sum", 1_021_000, 1_022_000, (3200, np.dtype("float32"), (20, 40))),
    (COMMAND, "train", 1_011_000, 1_025_003, 7),
]
TRACKS = complete_tracks(
    [
        Track(0, 10, 1_000_000, 1_100_000, [*SPANS, (COMMAND, "", 1_010_000, 1_040_000, None)]),
        Track(1, 11, 1_000_500, 1_100_000, [*SPANS[:3], (COMMAND, "", 1_011_000, 1_025_003, 7)]),
    ]
)


def test_a_trace_is_what_viewers_accept():
    check(trace(TRACKS, {"lost": "something"}))


@pytest.mark.parametrize(
    "broken",
    [
        {"ts": -1},
        {"ts": float("nan")},
        {"dur": None},
        {"ph": "Q"},
        {"pid": "0"},
        {"tid": 0},
        {"args": {"shape": [1, 2]}},
        {"dur": 100.0},  # it would end after the span around it
        {"tid": 11},  # which is that of another process
    ],
)
def test_the_check_of_the_format_refuses(broken):
    document = trace(TRACKS, {})
    event = next(one for one in document["traceEvents"] if one["name"] == "all_reduce sum")
    event.update(broken)
    with pytest.raises(AssertionError):
        check(document)


def test_times_are_microseconds_since_the_start_and_collectives_have_operation_and_bytes():
    document = trace(TRACKS, {"lost": "something"})
    reduces = [event for event in document["traceEvents"] if event["name"] == "all_reduce sum"]
    about = {"bytes": 3200, "array": "float32 (20, 40)"}
    assert [(one["pid"], one["ts"], one["dur"], one["args"]) for one in reduces] == [
        (10, 21.0, 1.0, about),
        (11, 21.0, 1.0, about),
    ]
    names = {
        event["pid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {10: "rank 0", 11: "rank 1"}
    assert document["otherData"] == {"clock": "CLOCK_MONOTONIC", "origin_ns": "1000000", "lost": "something"}


def test_a_file_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, trace(TRACKS, {}))
    assert read_trace(path) == trace(TRACKS, {})
