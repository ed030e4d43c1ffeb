"""Check a file against Chrome's Trace Event Format, and against what Perfetto's importer asks beyond that.

Written from the format's document (Duca and Sinclair, "Trace Event Format"), of which only complete and
metadata events are allowed here, and from perfetto/src/trace_processor/importers/json.
"""

import json
import math
from collections import defaultdict
from pathlib import Path

METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
}


def read_trace(path):
    """Return the content of a file that is a valid trace."""
    text = Path(path).read_text(encoding="utf-8")
    assert "\\u" not in text, "Perfetto: illegal character"
    document = json.loads(text, parse_constant=refuse)
    check(document)
    return document


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def check(document):
    """Assert that a document is a trace in the format's object form."""
    assert isinstance(document, dict)
    assert next(iter(document)) == "displayTimeUnit", "Perfetto looks for it at the beginning only"
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in document["otherData"].values())
    assert isinstance(document["traceEvents"], list)
    for event in document["traceEvents"]:
        check_event(event)
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    processes = defaultdict(set)
    for event in document["traceEvents"]:
        processes[event["tid"]].add(event["pid"])
    assert all(len(those) == 1 for those in processes.values()), "Perfetto names threads by number alone"
    for thread in processes:
        check_nesting([event for event in complete if event["tid"] == thread])


def check_event(event):
    assert event["ph"] in ("X", "M"), event
    assert isinstance(event["name"], str), event
    assert event["name"], event
    assert all(type(event[key]) is int and event[key] > 0 for key in ("pid", "tid")), event
    assert isinstance(event["args"], dict), event
    assert all(isinstance(value, str | int | float) for value in event["args"].values()), event
    if event["ph"] == "M":
        key, kind = METADATA[event["name"]]
        assert type(event["args"][key]) is kind, event
        return
    assert isinstance(event["cat"], str), event
    for key in ("ts", "dur"):
        assert type(event[key]) in (int, float), event
        assert math.isfinite(event[key]), event
        assert event[key] >= 0, event


def check_nesting(events):
    """Assert that no span of a thread ends within another that began before it; in whole nanoseconds."""
    times = [(round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"])), event) for event in events]
    open_ends = []
    for begin, end, event in sorted(times, key=lambda one: (one[0], -one[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], event
        open_ends.append(end)
