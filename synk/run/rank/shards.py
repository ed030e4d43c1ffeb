"""Find this rank's rows of the inputs of a call: in the arrays, or gathered ahead during the call before.

Call, arrays, index list -> Shards.inputs -> a RowInput for each input -> RankProgram.run
                         -> Gatherer.start, if the call announces the rows of the next one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synk.run.arrays.variables import RankVariables
from synk.run.rank.row_inputs import RowInput
from synk.transport.memory.gathering import SMALL_BYTES, Gatherer, RowsToGather
from synk.values import messages
from synk.values.rows import SelectedRows, split


class Shards:
    """The rows that one rank reads of scattered inputs and of sliceable variables."""

    def __init__(self, rank: int, n_ranks: int):
        self._rank = rank
        self._n_ranks = n_ranks
        self._gatherer = Gatherer()

    def inputs(
        self, step: messages.Call, selected: SelectedRows, arrays: Sequence[Any], indices: Any
    ) -> Sequence[Any]:
        """Return the rows of this rank, a `RowInput` for each scattered input.

        ``selected`` are the rows of all ranks. ``indices`` is the array of row numbers to which spans of the
        step refer if they are listed.
        """
        there = self._gathered(step, arrays, indices)
        start, stop = split(selected.stop - selected.start, self._n_ranks)[self._rank]
        picked = SelectedRows(selected.start + start, selected.start + stop, selected.indices)
        inputs = []
        for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True)):
            if minibatch:
                inputs.append(RowInput(array, SelectedRows(start, stop)))
            elif position in there:
                inputs.append(RowInput(there[position], SelectedRows(0, stop - start)))
            elif picked.indices is None:
                inputs.append(RowInput(array, picked))
            else:
                inputs.append(RowInput(array, picked, self._gatherer.memory_of(step.function, position)))
        return inputs

    def whole(
        self, step: messages.Call, start: int, stop: int, arrays: Sequence[Any], indices: Any
    ) -> list[Any] | None:
        """Return this rank's rows as plain arrays, by a fast way; None if `inputs` must be called instead.

        That is so for several slices, for rows gathered ahead, and for large rows in an index list. The rows
        are ``start:stop`` of each array, or with ``indices`` the rows that ``indices[start:stop]`` lists.
        """
        if step.num_slices > 1 or True in step.minibatch:
            return None
        if self._gatherer.pending or step.ahead is not None:
            return None
        if indices is None:
            return [array[start:stop] for array in arrays]
        for array in arrays:
            if array.strides[0] * (stop - start) >= SMALL_BYTES or not array.flags.c_contiguous:
                return None
        listed = indices[start:stop]
        return [array.take(listed, axis=0) for array in arrays]

    def _gathered(self, step: messages.Call, arrays: Sequence[Any], indices: Any) -> dict[int, Any]:
        """Return the rows that were gathered ahead, by input; begin to gather those of the next call."""
        there = self._gatherer.take(step.function, step.gathered)
        if step.ahead is not None:
            picked, _ = share(rows_of(step.ahead.rows, indices), self._rank, self._n_ranks)
            rows = picked.kept()  # a copy of the index list, which the next call overwrites with its own
            sources = {
                position: RowsToGather(array, rows, self._gatherer.memory_of(step.function, position))
                for position, (array, minibatch) in enumerate(zip(arrays, step.minibatch, strict=True))
                if not minibatch
            }
            self._gatherer.start(step.function, step.ahead.token, sources)
        return there

    def sliced(self, variables: RankVariables, identity: int, rows: SelectedRows) -> Any:
        """Return the given rows of this rank's value of a shared variable."""
        return RowInput(variables.on_host(identity), rows)

    def forget(self, function: int) -> None:
        """Free the memory that is kept for the rows of a function."""
        self._gatherer.forget(function)

    def end_threads(self) -> None:
        """End the threads that gather, if there are any."""
        self._gatherer.close()


def share(selected: SelectedRows, rank: int, n_ranks: int) -> tuple[SelectedRows, SelectedRows]:
    """Return a rank's part of a selection twice: as rows of the data set, and as rows of the selection."""
    part = split(len(selected), n_ranks)[rank]
    return selected.part(*part), SelectedRows(*part)


def rows_of(span: messages.RowSpan, indices: Any) -> SelectedRows:
    """Return the rows that a span in a message stands for; ``indices`` is the message's index list."""
    return SelectedRows(span.start, span.stop, indices if span.listed else None)
