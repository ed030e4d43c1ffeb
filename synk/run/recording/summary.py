"""Sum up tracks: how each rank spent its time, which rank is the slowest, and why the others wait.

Tracks, of `complete_tracks` -> own_times -> a row of figures for each rank
                             -> who_was_late: the rank that came last to meetings, and its function -> reasons

A meeting is a point of a command at which ranks wait for each other: a barrier, or the end of the command.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from synk.compile.observe.report import table
from synk.run.recording.spans import (
    BARRIER,
    COLLECTIVE,
    COMMAND,
    COMPILING,
    COMPUTING,
    GATHERING,
    REPLIES,
    SCRIPT,
    WAITING,
    Span,
    Track,
    nested,
)
from synk.values.notebooks import preformatted

COLUMNS = {
    "computing": COMPUTING,
    "compiling": COMPILING,
    "reducing": COLLECTIVE,
    "gathering": GATHERING,
    "waiting": WAITING,
    "script": SCRIPT,
    "other": COMMAND,
}
SECONDS = 1e-9
WORTH_SAYING = 0.01  # the least share of the time that a reason must explain, per waiting rank

Arrival = tuple[
    int, str
]  # when a rank came to a meeting (ns), and the name of the last function it ran before


class Summary:
    """The figures of a finished timeline; ``str(summary)`` is a table of them.

    Attributes
    ----------
    rows : list of dict
        One per rank: ``rank``, ``seconds`` (the recorded time), ``n_commands``, and the seconds of that time
        spent ``computing``, ``compiling``, ``reducing`` (in collectives of any kind, without waiting),
        ``gathering`` rows, ``waiting`` (at barriers, for commands, for replies), in the ``script`` and on
        ``other`` things.
    slowest : int or None
        The rank that the others wait for most; None if they hardly wait, or if it is not known.
    reasons : list of str
        Sentences that say why ranks wait, the reason that costs most time first.
    notes : mapping of str
        Sentences on what the timeline lacks, and why.
    """

    def __init__(self, tracks: Sequence[Track], notes: Mapping[str, str]):
        self.notes = notes
        own = [own_times(track.spans) for track in tracks]
        self.rows = [_row(track, times) for track, times in zip(tracks, own, strict=True)]
        self.slowest: int | None = None
        self.reasons: list[str] = []
        if len(tracks) > 1:
            self._find_reasons(tracks, own)

    def _find_reasons(self, tracks: Sequence[Track], own: Sequence[Counter[tuple[str, str]]]) -> None:
        """Set ``reasons`` and ``slowest``; ``own`` are the `own_times` of each track."""
        n_others, least = len(tracks) - 1, WORTH_SAYING * self.rows[0]["seconds"]
        lost, n_steps = who_was_late(tracks)
        said: list[tuple[float, str]] = []
        of_ranks: Counter[int] = Counter()
        for (rank, function), waited in lost.items():
            seconds = waited * SECONDS / n_others
            of_ranks[rank] += waited
            why = _why(rank, function, [times[COMPUTING, function] for times in own])
            per_step = f"{1e3 * seconds / n_steps[function]:.2f} ms a step"
            said.append((seconds, f"rank {rank} {why}; others wait {per_step} for it"))
        script, n_commands = self.rows[0]["script"], self.rows[0]["n_commands"]
        per_command = f"{1e3 * script / max(n_commands, 1):.2f} ms a command"
        said.append((script, f"workers wait {per_command} while the script does something else"))
        self.reasons = [reason for seconds, reason in sorted(said, reverse=True) if seconds >= least]
        for rank, waited in of_ranks.most_common(1):
            self.slowest = rank if waited * SECONDS / n_others >= least else None

    def __str__(self) -> str:
        heads = ("rank", "seconds", "commands", *COLUMNS)
        rows = [
            [str(row["rank"]), f"{row['seconds']:.3f}", str(row["n_commands"])]
            + [f"{row[column]:.3f}" for column in COLUMNS]
            for row in self.rows
        ]
        reasons = self.reasons or (["no rank keeps the others waiting for long"] if rows[1:] else [])
        return "\n".join([*table(heads, rows), *reasons, *self.notes.values()])

    def _repr_html_(self) -> str:
        """Return the table and the reasons for a notebook."""
        return preformatted(str(self))


def _row(track: Track, times: Counter[tuple[str, str]]) -> dict[str, Any]:
    """Return the entry of `Summary.rows` for one rank, from its `own_times`."""
    row: dict[str, Any] = {"rank": track.rank, "seconds": (track.end - track.begin) * SECONDS}
    row["n_commands"] = sum(span.kind == COMMAND for span in track.spans)
    for column, kind in COLUMNS.items():
        row[column] = sum(spent for (found, _), spent in times.items() if found == kind) * SECONDS
    return row


def _why(rank: int, function: str, computing: Sequence[int]) -> str:
    """Say why a rank comes late after a function; ``computing`` is the time of the function on each rank."""
    if not function:
        return "comes late to the first meeting of a command"
    others = mean([spent for other, spent in enumerate(computing) if other != rank])
    longer = computing[rank] / others - 1 if others else 0.0
    return f"computes {longer:.0%} longer in {function!r}" if longer > 0 else f"comes late after {function!r}"


def own_times(spans: Sequence[Span]) -> Counter[tuple[str, str]]:
    """Return the nanoseconds spent in spans of each kind and name, without other spans inside them."""
    times: Counter[tuple[str, str]] = Counter()
    for span, around in nested(spans):
        times[span.kind, span.name] += span.end - span.begin
        if around:
            times[around[-1].kind, around[-1].name] -= span.end - span.begin
    return times


def who_was_late(tracks: Sequence[Track]) -> tuple[Counter[tuple[int, str]], Counter[str]]:
    """Return how long ranks waited at meetings, by the rank that came last and the function it ran before.

    The first counter holds nanoseconds of all waiting ranks together. The second holds for each function the
    number of commands in which a rank came last after it. All ranks come to the same meetings of a command,
    in the same order: its barriers, then its end.
    """
    lost: Counter[tuple[int, str]] = Counter()
    commands: dict[str, set[int]] = defaultdict(set)
    of_ranks = [arrivals(track.spans) for track in tracks]
    for number, first in of_ranks[0].items():
        each = [met.get(number, []) for met in of_ranks]
        if any(len(met) != len(first) for met in each):
            continue  # a rank failed in this command, or has dropped its spans
        for meeting in zip(*each, strict=True):
            last = max(range(len(meeting)), key=lambda rank: meeting[rank][0])
            at, function = meeting[last]
            lost[tracks[last].rank, function] += sum(at - other for other, _ in meeting)
            commands[function].add(number)
    return lost, Counter({function: len(numbers) for function, numbers in commands.items()})


def arrivals(spans: Sequence[Span]) -> dict[int, list[Arrival]]:
    """Return the arrivals of one rank at the meetings of each command, by the command's number."""
    met: dict[int, list[Arrival]] = {}
    command, function = None, ""
    for span, _ in nested(spans):
        if span.kind == COMMAND:
            command, function = span, ""
            met[span.about] = [(span.end, "")]  # the last meeting is the command's end
        elif command is None or span.begin > command.end:
            continue
        elif span.kind == COMPUTING:
            function = span.name
            met[command.about][-1] = command.end, function
        elif span.name == BARRIER:
            met[command.about].insert(-1, (span.begin, function))
        elif span.name == REPLIES:
            met[command.about][-1] = span.begin, function
    return met
