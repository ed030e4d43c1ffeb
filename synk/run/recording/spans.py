"""Spans of time that ranks have recorded, the tracks of spans, and how spans are nested.

    Recorder -> Track of each rank -> complete_tracks -> Tracks with all spans -> trace, Summary

Values and arithmetic only: no clock is read and no process is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

COMMAND, COMPUTING, COMPILING = "command", "computing", "compiling"
COLLECTIVE, GATHERING, WAITING, SCRIPT = "collective", "gathering", "waiting", "script"
# The names of spans of kind WAITING: for the other ranks in the middle of a command, and for their replies at
# its end.
BARRIER, REPLIES = "barrier", "for replies"


class Span(NamedTuple):
    """Something that one rank did, from ``begin`` to ``end``, in nanoseconds of its machine's clock."""

    kind: str  # one of the constants above
    name: str
    begin: int
    end: int
    # The number of a command; bytes, dtype and shape of a collective's array; the number of gathered rows.
    about: Any = None


@dataclass(frozen=True)
class Track:
    """The spans of one rank, in the order in which they ended."""

    rank: int
    pid: int
    begin: int  # ns: when the recording began
    end: int  # ns: when it ended
    spans: Sequence[Any]  # `Span`, or plain tuples of the same entries
    n_dropped: int = 0  # number of earlier spans that were dropped, as there was no room for them
    # Nanoseconds to add to this machine's clock to get that of rank 0's machine. CLOCK_MONOTONIC is common to
    # the processes of one machine; a run on several machines would set the difference here, and nowhere else.
    offset: int = 0


def complete_tracks(tracks: Sequence[Track]) -> list[Track]:
    """Return tracks on rank 0's clock, with the spans and names added that follow from the recorded ones.

    Workers do not know the names of commands: they are looked up in rank 0's track, the first one. Between
    commands nothing is recorded: there rank 0 runs the script, and the workers wait for a command. Spans are
    sorted as by `in_order`.
    """
    moved = [_on_clock(track) for track in tracks]
    labels = {span.about: span.name for span in moved[0].spans if span.kind == COMMAND}
    return [_complete(track, labels) for track in moved]


def _on_clock(track: Track) -> Track:
    """Return a track with its times converted to rank 0's clock, and its spans in order."""
    spans = [
        Span(kind, name, begin + track.offset, end + track.offset, about)
        for kind, name, begin, end, about in track.spans
    ]
    begin, end = track.begin + track.offset, track.end + track.offset
    if (
        track.n_dropped
    ):  # the track begins with the first span left, or the time before would count as waiting
        begin = min(span.begin for span in spans)
    return replace(track, spans=in_order(spans), begin=begin, end=end, offset=0)


def in_order(spans: Sequence[Span]) -> list[Span]:
    """Return spans sorted by their beginnings, each before the spans inside it."""
    return sorted(spans, key=lambda span: (span.begin, -span.end))


def _complete(track: Track, labels: dict[Any, str]) -> Track:
    """Return one track as `complete_tracks` does; ``labels`` are the names of commands by number."""
    commands = [span for span in track.spans if span.kind == COMMAND]
    others = [span for span in track.spans if span.kind != COMMAND]
    if track.rank == 0:
        # Rank 0 has two spans for a command, one inside the other: all of it, and rank 0's own part, which
        # has the name. After its own part, rank 0 waits for replies.
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
    """Yield each span with the list of spans around it, the innermost last.

    The spans must be `in_order`. The list is changed when the next span is asked for.
    """
    around: list[Span] = []
    for span in spans:
        while around and around[-1].end <= span.begin:
            around.pop()
        yield span, around
        around.append(span)
