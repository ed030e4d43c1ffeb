"""Carry values from the master to the shared variables of ranks, with as few copies as possible.

In a sequence the values are copied into staging buffers, where they wait until the ranks reach the step. In a
command of their own there is no need to wait, as no rank computes: the master writes arrays straight into the
variables, if these are in shared memory. From `Data`, each rank copies its own rows.

    OutgoingValue -> staged_step, in a command with other steps
                  -> write_now, in a command of its own
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.run.functions.selections import IndexList
from synk.run.rank.rank import Rank
from synk.run.rank.shards import rows_of
from synk.transport.comm import SharedArrays
from synk.values import messages
from synk.values.rows import SelectedRows


@dataclass(slots=True)
class AssignStep(messages.Step):
    """Set shared variables to rows of arrays in shared memory; a rank whose span is None keeps its value."""

    variables: tuple[int, ...]
    arrays: tuple[messages.ArrayRef | None, ...]  # None: the master has already written the variable's rows
    spans: tuple[tuple[messages.RowSpan | None, ...], ...]  # per variable, per rank
    indices: messages.ArrayRef | None

    def run(self, rank: Rank) -> None:
        indices = None if self.indices is None else rank.segments.array(self.indices)
        for variable, ref, spans in zip(self.variables, self.arrays, self.spans, strict=True):
            span = spans[rank.rank]
            if span is None:
                continue
            if ref is None:
                rank.variables.take_stored(variable)
                continue
            array = rank.segments.array(ref)
            rows = rows_of(span, indices)
            shape = (len(rows), *array.shape[1:]) if array.ndim else ()
            rank.variables.fill(variable, shape, partial(copy_rows, array, rows))

    def parts(self, readers: messages.Readers) -> Iterator[messages.Part]:
        for ref, spans in zip(self.arrays, self.spans, strict=True):
            there = [span for rank in readers.ranks if (span := spans[rank]) is not None]
            if ref is not None and there:
                rows = min(span.start for span in there), max(span.stop for span in there)
                yield messages.Part(ref, None if any(span.listed for span in there) else rows)
        yield from messages.parts_in(self.indices, readers)


@dataclass(slots=True)
class BroadcastStep(messages.Step):
    """Copy rank 0's values of shared variables to all ranks."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        shared = [_shared_with_rank_0(rank, variable) for variable in self.variables]
        with rank.communicator.at_once("broadcast", "sum", shared, shapes=False):
            for variable, known in zip(self.variables, shared, strict=True):
                # In shared memory the result is written over this rank's array, so its old value is not read.
                array = rank.value(variable) if known is None else known.mine
                result = rank.communicator.broadcast(array, shared=known)
                if rank.rank > 0:
                    rank.variables.assign(variable, result)


def _shared_with_rank_0(rank: Rank, variable: int) -> SharedArrays | None:
    """Return the variable's arrays in shared memory, if rank 0's value can be copied between them; else None.

    On rank 0 its value must be there; on others it is enough that their array has rank 0's shape.
    """
    if rank.rank == 0:
        return rank.variables.shared_arrays(variable)
    shared = rank.variables.storage(variable)
    return shared if shared is not None and shared[0].shape == shared.mine.shape else None


@dataclass(eq=False)
class OutgoingValue:
    """A value that the master sends to a shared variable, and the rows of it that each rank gets."""

    variable: int  # its identity
    array: Any  # NumPy array or Data
    rows: Sequence[SelectedRows | None]  # by rank; None for a rank that keeps its present value

    def is_same_for_all(self) -> bool:
        """Tell whether all ranks get the same rows; then these go to rank 0 and are broadcast from there."""
        first, *others = self.rows
        return first is not None and all(rows is first for rows in others)

    def can_be_written(self, places: Sequence[NDArray[Any] | None]) -> bool:
        """Tell whether the master can write the value into shared memory itself.

        ``places`` are the variable's arrays by rank, None for one that this process cannot reach. A value
        that is broadcast needs only rank 0's array. `Data` are copied by the ranks.
        """
        needed = places[:1] if self.is_same_for_all() else places
        pairs = zip(self.rows, needed, strict=False)
        is_reached = all(place is not None for rows, place in pairs if rows is not None)
        return is_reached and not isinstance(self.array, Data)

    def shapes(self, present: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the shape the variable will have on each rank; ``present`` are the shapes it has now."""
        trailing = self.array.shape[1:]
        return [
            before if rows is None else (len(rows), *trailing) if self.array.ndim else ()
            for rows, before in zip(self.rows, present, strict=True)
        ]


def staged_step(
    run: Owner, given: Sequence[OutgoingValue], written: Collection[OutgoingValue] = ()
) -> AssignStep:
    """Copy arrays into staging buffers, and return the step that sets the variables from there.

    `Data` are read where they are. Values in ``written`` are in the variables already: for them the step only
    makes the ranks use what is stored there.
    """
    key = object()  # a key of this step alone: a command may set one variable several times
    indices = IndexList()
    spans = [tuple([None if rows is None else indices.span(rows) for rows in one.rows]) for one in given]
    plain = [one.array for one in given if one not in written and not isinstance(one.array, Data)]
    staged = iter(run.memory.temporary.put_all((key,), plain) if plain else [])
    refs = [
        None if one in written else one.array.ref() if isinstance(one.array, Data) else next(staged)
        for one in given
    ]
    listed = indices.stage(run.memory.temporary, (key, "indices"))
    return AssignStep(tuple([one.variable for one in given]), tuple(refs), tuple(spans), listed)


def write_now(run: Owner, given: Sequence[OutgoingValue]) -> list[messages.Step]:
    """Write values straight into shared variables where possible; return the steps that do the rest."""
    storage = run.memory.shared_storage
    places = storage.place({one.variable: one.shapes(storage.shapes(one.variable)) for one in given})
    pairs = zip(given, places, strict=True)
    written = {one: known for one, known in pairs if known is not None and one.can_be_written(known)}
    same = [one for one in written if one.is_same_for_all()]
    rest = [one for one in given if one not in same]
    # Staging comes first: if there is no memory for it, no variable has changed.
    steps: list[messages.Step] = [staged_step(run, rest, written)] if rest else []
    if same:
        steps.append(BroadcastStep(tuple([one.variable for one in same])))
    for (one, known), array in zip(written.items(), _unshared(written), strict=True):
        for rows, place in zip(one.rows[: 1 if one in same else None], known, strict=False):
            if rows is not None:
                copy_rows(array, rows, place)
        if one in same:
            storage.take_stored(one.variable)
    return steps


def _unshared(written: Mapping[OutgoingValue, Any]) -> list[NDArray[Any]]:
    """Return the arrays of values; an array that overlaps a variable about to be written is copied first."""
    arrays = [one.array for one in written]
    if all(array.base is None for array in arrays):  # they have memory of their own
        return arrays
    shared = sorted(byte_bounds(place) for known in written.values() for place in known if place is not None)
    return [np.array(array) if _overlaps(byte_bounds(array), shared) else array for array in arrays]


def _overlaps(bounds: tuple[int, int], shared: Sequence[tuple[int, int]]) -> bool:
    """Tell whether a range of addresses overlaps one of ``shared``, which are sorted and disjoint ranges."""
    before = bisect_left(shared, (bounds[1],))
    return before > 0 and bounds[0] < shared[before - 1][1]


def copy_rows(array: Any, rows: SelectedRows, out: Any) -> None:
    """Copy the given rows of ``array``, or a 0-d array as a whole, into ``out``."""
    if rows.indices is None:
        out[...] = array[rows.start : rows.stop] if array.ndim else array
    else:
        # The master has checked the indices, so none is clipped; with mode="raise", NumPy would copy twice.
        np.take(array, rows.indices[rows.start : rows.stop], axis=0, out=out, mode="clip")
