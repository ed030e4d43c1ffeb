"""Record what one rank does, by replacing methods of its objects by ones that take the time of each call.

StartRecording -> Recorder.watch_rank: methods are replaced -> spans ... StopRecording -> Track
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from synk.run.rank.rank import Rank
from synk.run.rank.row_inputs import RowInput
from synk.run.rank.shards import Shards
from synk.run.recording.replaced import ReplacedMethods
from synk.run.recording.spans import (
    BARRIER,
    COLLECTIVE,
    COMMAND,
    COMPILING,
    COMPUTING,
    GATHERING,
    WAITING,
    Track,
)
from synk.values import messages
from synk.values.messages import Step

LIMIT = 50_000  # spans of each rank, of some 200 bytes; a training step makes about eight

Described = tuple[str, Any]  # the name of a span, and its `Span.about`


class Recorder:
    """The latest spans of one rank.

    Attributes
    ----------
    label : callable
        Returns the name of the present command. Only the master knows it; the worker's returns "command".
    """

    def __init__(self, rank: Rank):
        self.label: Callable[[], str] = lambda: COMMAND
        self._rank = rank
        self._begin = monotonic_ns()
        self._spans: deque[tuple[Any, ...]] = deque(maxlen=LIMIT)
        self._count = 0
        self._replaced = ReplacedMethods()

    def watch_rank(self) -> None:
        """Watch the rank's present objects; after a restart these are others than before."""
        self.unwatch()
        rank = self._rank
        self.watch(rank, "run", COMMAND, lambda command: (self.label(), command.number))
        self.watch(rank, "call", COMPUTING, lambda step: (rank.program(step.function).spec.name, None))
        self.watch(rank, "compute", COMPUTING, lambda program, arguments: (program.spec.name, None))
        self.watch(rank, "compile", COMPILING, lambda step: ("compile", None))
        self.watch(rank.peers, "wait", WAITING, lambda: (BARRIER, None))
        self._replaced.watch_collectives(
            rank.communicator,
            lambda name, method: self._timed(method, COLLECTIVE, _describe_collective(name)),
        )
        self._watch_rows(rank._shards)

    def watch(self, owner: Any, method: str, kind: str, describe: Callable[..., Described]) -> None:
        """Record a span for each call of a method of one object.

        ``describe`` is called with the positional arguments, and returns the span's name and `Span.about`.
        """
        self._replaced.replace(owner, method, self._timed(getattr(owner, method), kind, describe))

    def _timed(self, plain: Callable[..., Any], kind: str, describe: Callable[..., Described]) -> Any:
        """Return a method that calls ``plain`` and records a span, as `watch` says."""
        note, clock = self._note, monotonic_ns

        def watched(*args: Any, **keywords: Any) -> Any:
            name, about = describe(*args)
            begin = clock()
            try:
                return plain(*args, **keywords)
            finally:
                note((kind, name, begin, clock(), about))

        return watched

    def unwatch(self) -> None:
        """Put all methods back."""
        self._replaced.put_back()

    def track(self) -> Track:
        """Return the `Track` of all spans recorded so far."""
        spans: Sequence[Any] = list(self._spans)  # plain tuples travel in half the bytes
        dropped = self._count - len(spans)
        return Track(self._rank.rank, os.getpid(), self._begin, monotonic_ns(), spans, dropped)

    def _note(self, span: tuple[Any, ...]) -> None:
        self._count += 1
        self._spans.append(span)

    def _watch_rows(self, shards: Shards) -> None:
        """Record spans for gathering rows by an index list, and for waiting for rows gathered ahead.

        Contiguous rows are read in place, which takes no time.
        """
        note, clock = self._note, monotonic_ns
        whole, inputs, sliced = shards.whole, shards.inputs, shards.sliced

        def watched_whole(step: Any, start: int, stop: int, arrays: Any, indices: Any) -> Any:
            begin = clock()
            rows = whole(step, start, stop, arrays, indices)
            if indices is not None and rows is not None:
                note((GATHERING, "rows", begin, clock(), stop - start))
            return rows

        def watched_inputs(step: Any, *others: Any) -> Any:
            begin = clock()
            rows = inputs(step, *others)
            if step.gathered:
                note((GATHERING, "rows gathered ahead", begin, clock(), len(rows[0].rows)))
            return [RecordedRows.of(one, note) for one in rows]

        self._replaced.replace(shards, "whole", watched_whole)
        self._replaced.replace(shards, "inputs", watched_inputs)
        self._replaced.replace(shards, "sliced", lambda *which: RecordedRows.of(sliced(*which), note))


class RecordedRows(RowInput):
    """Rows given by an index list, which record a span when they are gathered."""

    __slots__ = ("note",)

    note: Callable[[tuple[Any, ...]], None]

    @classmethod
    def of(cls, rows: RowInput, note: Callable[[tuple[Any, ...]], None]) -> RowInput:
        """Return rows that call ``note(span)`` when gathered, or the given ones if they are read in place."""
        if rows.rows.indices is None:
            return rows
        made = cls(rows.array, rows.rows, rows.room)
        made.note = note
        return made

    def part(self, start: int, stop: int) -> Any:
        begin = monotonic_ns()
        part = RowInput.part(self, start, stop)
        self.note((GATHERING, "rows", begin, monotonic_ns(), stop - start))
        return part


def _describe_collective(method: str) -> Callable[..., Described]:
    """Return the ``describe`` function, for `Recorder.watch`, of a collective of the communicator."""

    def describe(array: Any = None, op: Any = None, *others: Any) -> Described:
        about = getattr(array, "nbytes", 0), getattr(array, "dtype", ""), getattr(array, "shape", ())
        return f"{method} {op}" if isinstance(op, str) else method, about

    return describe


@dataclass(slots=True)
class StartRecording(Step):
    """Start recording on every rank."""

    again: bool  # after a restart: a rank that was recording keeps its spans

    phase = messages.IDLE

    def run(self, rank: Rank) -> None:
        if rank.recorder is not None and not self.again:
            rank.recorder.unwatch()  # of a start that failed on another rank
        if rank.recorder is None or not self.again:
            rank.recorder = Recorder(rank)
        rank.recorder.watch_rank()


@dataclass(slots=True)
class StopRecording(Step):
    """Stop recording on every rank, and send its track to the master."""

    phase = messages.IDLE

    def run(self, rank: Rank) -> Track:
        recorder, rank.recorder = rank.recorder, None
        recorder.unwatch()
        track: Track = recorder.track()
        return track
