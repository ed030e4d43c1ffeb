"""Values that the master hands out to shared variables: the shortest way for each.

In a sequence they wait in staging buffers until their step comes. As a command of their own they
need not: no rank is at work, so the master writes arrays straight to where the variables live, in
shared memory, and of Data each rank copies its own rows there.

    Given values -> staged_step, in a command of several
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
    """Set shared variables from arrays in shared memory; a rank whose span is None keeps its value."""

    variables: tuple[int, ...]
    arrays: tuple[messages.ArrayRef | None, ...]  # None: the master has written to where the variable lives
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
    """Copy rank 0's values to all ranks."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        shared = [_shared_with_rank_0(rank, variable) for variable in self.variables]
        with rank.communicator.at_once("broadcast", "sum", shared, shapes=False):
            for variable, known in zip(self.variables, shared, strict=True):
                # Where it is shared, the value of another rank does not matter.
                array = rank.value(variable) if known is None else known.mine
                result = rank.communicator.broadcast(array, shared=known)
                if rank.rank > 0:
                    rank.variables.assign(variable, result)


def _shared_with_rank_0(rank: Rank, variable: int) -> SharedArrays | None:
    """Return the arrays of all ranks if rank 0's value is, or can be put, where this rank's may go."""
    if rank.rank == 0:
        return rank.variables.shared_arrays(variable)
    shared = rank.variables.storage(variable)
    return shared if shared is not None and shared[0].shape == shared.mine.shape else None


@dataclass(eq=False)
class Given:
    """A value on its way to the ranks."""

    variable: int  # by identity
    array: Any  # or Data
    rows: Sequence[SelectedRows | None]  # by rank, what it gets; None where it keeps its value

    def is_same_for_all(self) -> bool:
        """Tell whether all ranks get the same rows: then they copy them from rank 0, at the same time."""
        first, *others = self.rows
        return first is not None and all(rows is first for rows in others)

    def can_be_written(self, places: Sequence[NDArray[Any] | None]) -> bool:
        """Tell whether the master can write it to where it is to be, or to where ranks copy it from."""
        needed = places[:1] if self.is_same_for_all() else places
        pairs = zip(self.rows, needed, strict=False)
        is_reached = all(place is not None for rows, place in pairs if rows is not None)
        return is_reached and not isinstance(self.array, Data)

    def shapes(self, present: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' values when they have theirs."""
        trailing = self.array.shape[1:]
        return [
            before if rows is None else (len(rows), *trailing) if self.array.ndim else ()
            for rows, before in zip(self.rows, present, strict=True)
        ]


def staged_step(run: Owner, given: Sequence[Given], written: Collection[Given] = ()) -> AssignStep:
    """Put values into staging buffers, but for those that are written; return the step that takes them."""
    key = object()  # of this step alone: a command may hand out several values of one variable
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


def write_now(run: Owner, given: Sequence[Given]) -> list[messages.Step]:
    """Write what can be written now; return the steps that do the rest."""
    storage = run.memory.shared_storage
    places = storage.place({one.variable: one.shapes(storage.shapes(one.variable)) for one in given})
    pairs = zip(given, places, strict=True)
    written = {one: known for one, known in pairs if known is not None and one.can_be_written(known)}
    same = [one for one in written if one.is_same_for_all()]
    rest = [one for one in given if one not in same]
    # Staged first: where there is no room for it, nothing has changed.
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


def _unshared(written: Mapping[Given, Any]) -> list[NDArray[Any]]:
    """Return the arrays; copies of those that are, themselves, where some variable lives."""
    arrays = [one.array for one in written]
    if all(array.base is None for array in arrays):  # they have memory of their own
        return arrays
    shared = sorted(byte_bounds(place) for known in written.values() for place in known if place is not None)
    return [np.array(array) if _overlaps(byte_bounds(array), shared) else array for array in arrays]


def _overlaps(bounds: tuple[int, int], shared: Sequence[tuple[int, int]]) -> bool:
    """Tell whether addresses are among those of arrays, which are in order and apart from each other."""
    before = bisect_left(shared, (bounds[1],))
    return before > 0 and bounds[0] < shared[before - 1][1]


def copy_rows(array: Any, rows: SelectedRows, out: Any) -> None:
    """Copy rows of ``array``, or a 0-d array whole, to where they are to be."""
    if rows.indices is None:
        out[...] = array[rows.start : rows.stop] if array.ndim else array
    else:
        # Checked on the master, so nothing is clipped; but with "raise", NumPy copies them twice.
        np.take(array, rows.indices[rows.start : rows.stop], axis=0, out=out, mode="clip")
