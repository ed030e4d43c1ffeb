"""Spans of time, the tracks that they make, and how they lie in each other.

    Recorder -> Track of each rank -> told -> whole tracks -> trace, Summary

Pure values and arithmetic: no clock is read and no process asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

COMMAND, COMPUTING, COMPILING = "command", "computing", "compiling"
COLLECTIVE, GATHERING, WAITING, SCRIPT = "collective", "gathering", "waiting", "script"
# Names of waiting: for the other ranks in the middle of a command, and at its end for their replies.
BARRIER, REPLIES = "barrier", "for replies"


class Span(NamedTuple):
    """Something that one rank did, from ``begin`` to ``end``, in nanoseconds of its machine's clock."""

    kind: str  # one of the above
    name: str
    begin: int
    end: int
    about: Any = None  # of a command its number, of a collective the array, of a gathering its rows


@dataclass(frozen=True)
class Track:
    """The spans of one rank, those that ended first first."""

    rank: int
    pid: int
    begin: int  # ns: since when this process records
    end: int
    spans: Sequence[Any]  # `Span`, or such tuples
    n_dropped: int = 0  # spans before these, for which there was no room
    # Nanoseconds from this machine's clock to that of rank 0's. CLOCK_MONOTONIC is common to the processes of
    # one machine; a run on several would set it here, and nowhere else.
    offset: int = 0


def told(tracks: Sequence[Track]) -> list[Track]:
    """Return tracks on rank 0's clock, sorted, with what follows from spans: names of commands, and waiting.

    Workers do not know what a command is called, and nothing is measured between commands: there rank 0 is
    in the script, and workers wait. The tracks are those of rank 0, then of others.
    """
    moved = [_on_clock(track) for track in tracks]
    labels = {span.about: span.name for span in moved[0].spans if span.kind == COMMAND}
    return [_told(track, labels) for track in moved]


def _on_clock(track: Track) -> Track:
    spans = [
        Span(kind, name, begin + track.offset, end + track.offset, about)
        for kind, name, begin, end, about in track.spans
    ]
    begin, end = track.begin + track.offset, track.end + track.offset
    if track.n_dropped:  # the time of what was dropped is not taken for waiting
        begin = min(span.begin for span in spans)
    return replace(track, spans=in_order(spans), begin=begin, end=end, offset=0)


def in_order(spans: Sequence[Span]) -> list[Span]:
    """Return spans by their beginnings, each before those inside it."""
    return sorted(spans, key=lambda span: (span.begin, -span.end))


def _told(track: Track, labels: dict[Any, str]) -> Track:
    commands = [span for span in track.spans if span.kind == COMMAND]
    others = [span for span in track.spans if span.kind != COMMAND]
    if track.rank == 0:
        # A command is around rank 0's own part of it, which knows its name; in the rest, replies come in.
        pairs = [(around[-1], part) for part, around in nested(commands) if around]
        commands = [whole._replace(name=part.name, about=part.about) for whole, part in pairs]
        others += [Span(WAITING, REPLIES, part.end, whole.end) for whole, part in pairs]
        between = SCRIPT, "script"
    else:
        commands = [span._replace(name=labels.get(span.about, COMMAND)) for span in commands]
        between = WAITING, "for a command"
    edges = [track.begin, *(edge for span in commands for edge in (span.begin, span.end)), track.end]
    gaps = [Span(*between, *edges[at : at + 2]) for at in range(0, len(edges), 2)]
    return replace(track, spans=in_order([*commands, *others, *gaps]))


def nested(spans: Sequence[Span]) -> Iterator[tuple[Span, list[Span]]]:
    """Yield each span, `in_order`, with those around it, the innermost last; the list changes afterwards."""
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end <= span.begin:
            around.pop()
        yield span, around
        around.append(span)
