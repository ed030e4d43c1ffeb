"""This rank's rows of the scattered inputs of a call: where they are, or gathered ahead already.

    Call, arrays, index list -> Shards.inputs -> a RowInput each -> Program.run
                             -> Gatherer.start, where the call says what comes next

Imports ``gathering``, ``messages``, ``plan`` and ``program``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk import messages
from synk.memory.gathering import Gatherer, Source
from synk.plan import Rows, split
from synk.rank.program import RowInput


class Shards:
    """What one rank reads of scattered inputs.

    Parameters
    ----------
    rank, n_ranks : int
    """

    def __init__(self, rank: int, n_ranks: int):
        self._rank = rank
        self._n_ranks = n_ranks
        self._gatherer = Gatherer()

    def inputs(self, step: messages.Call, arrays: Sequence[Any], indices: Any) -> list[RowInput]:
        """Return the rows of this rank.

        Parameters
        ----------
        step : messages.Call
        arrays : sequence of array
            The scattered inputs, all rows of them.
        indices : int64 array or None
            What listed spans of the step refer to.
        """
        if step.batch is None:
            return []
        there = self._gathered(step, arrays, indices)
        picked, paired = self._share(step.batch, indices)
        inputs = []
        for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True)):
            if minibatch:
                inputs.append(RowInput(array, paired))
            elif position in there:
                inputs.append(RowInput(there[position], Rows(0, len(picked))))
            else:
                inputs.append(RowInput(array, picked, self._gatherer.room(step.function, position)))
        return inputs

    def _share(self, span: messages.Span, indices: Any) -> tuple[Rows, Rows]:
        """Return this rank's part of what a span selects: rows of the data set, rows of the selection."""
        selected = rows_of(span, indices)
        mine = split(len(selected), self._n_ranks)[self._rank]
        return selected.part(*mine), Rows(*mine)

    def _gathered(self, step: messages.Call, arrays: Sequence[Any], indices: Any) -> dict[int, Any]:
        """Return the rows that are there already, by position; begin to gather those of the next call."""
        there = self._gatherer.take(step.function, step.gathered)
        if step.ahead is not None:
            picked, _ = self._share(step.ahead.rows, indices)
            rows = picked.kept()  # the next call writes its own list over this one
            sources = {
                position: Source(array, rows, self._gatherer.room(step.function, position))
                for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True))
                if not minibatch
            }
            self._gatherer.start(step.function, step.ahead.token, sources)
        return there

    def forget(self, function: int) -> None:
        """Free what is kept for a function."""
        self._gatherer.forget(function)

    def rest(self) -> None:
        """End the thread that gathers, if there is one."""
        self._gatherer.close()


def rows_of(span: messages.Span, indices: Any) -> Rows:
    """Return the rows that a span in a message means."""
    return Rows(span.start, span.stop, indices if span.listed else None)
