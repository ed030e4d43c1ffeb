"""Write tracks down in Chrome's Trace Event Format, as far as Perfetto's importer understands it.

Tracks, of `complete_tracks` -> trace -> write_json

The format: Duca and Sinclair, "Trace Event Format", docs.google.com/document/d/
1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Spans are complete events ("X"), which nest on their thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from synk.run.recording.spans import COLLECTIVE, GATHERING, Span, Track


def trace(tracks: Sequence[Track], notes: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of the file: a process for each rank, with times in microseconds since the start."""
    origin = min(track.begin for track in tracks)
    return {
        "displayTimeUnit": "ms",  # first: Perfetto looks for it at the beginning of the file only
        "otherData": {"clock": "CLOCK_MONOTONIC", "origin_ns": str(origin), **notes},
        "traceEvents": [event for track in tracks for event in _events(track, origin)],
    }


def _events(track: Track, origin: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank; times count from ``origin``, in nanoseconds of the clock."""
    # Perfetto knows threads by number alone, so each rank's needs one of its own: its process id.
    place = {"pid": track.pid, "tid": track.pid}
    for name, about in (
        ("process_name", {"name": f"rank {track.rank}"}),
        ("process_sort_index", {"sort_index": track.rank}),
        ("thread_name", {"name": f"rank {track.rank}"}),
    ):
        yield {"name": name, "ph": "M", **place, "args": about}
    for span in track.spans:
        times = {"ts": (span.begin - origin) / 1e3, "dur": (span.end - span.begin) / 1e3}
        yield {"name": span.name, "cat": span.kind, "ph": "X", **times, **place, "args": _about(span)}


def _about(span: Span) -> dict[str, Any]:
    """Return the details of a span for viewers: bytes and array of a collective, rows of a gathering."""
    if span.kind == COLLECTIVE:
        nbytes, dtype, shape = span.about
        return {"bytes": nbytes, "array": f"{dtype} {tuple(shape)}"}
    return {"rows": span.about} if span.kind == GATHERING else {}
