"""Values that the master hands out to shared variables: the shortest way for each.

In a sequence they wait in staging buffers until their step comes. As a command of their own they
need not: no rank is at work, so the master writes arrays straight to where the variables live, in
shared memory, and of Data each rank copies its own rows there.

    variables, arrays, rows per rank -> HandOut -> step, of several (staged)
                                                -> steps, of a command of its own (written)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from synk.arrays.data import Data
from synk.arrays.owner import Owner
from synk.comm import SharedArrays
from synk.functions.calls import IndexList
from synk.rank.shards import rows_of
from synk.rank.worker import Rank
from synk.values import messages
from synk.values.rows import Rows


@dataclass(slots=True)
class AssignStep(messages.Step):
    """Set shared variables from arrays in shared memory; a rank whose span is None keeps its value."""

    variables: tuple[int, ...]
    arrays: tuple[messages.ArrayRef | None, ...]  # None: the master has written to where the variable lives
    spans: tuple[tuple[messages.Span | None, ...], ...]  # per variable, per rank
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


@dataclass(slots=True)
class BroadcastStep(messages.Step):
    """Copy rank 0's values to all ranks."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        shared = [_shared_with_rank_0(rank, variable) for variable in self.variables]
        with rank.communicator.at_once("broadcast", "sum", shared, shapes=False):
            for variable, known in zip(self.variables, shared, strict=True):
                # Where it is shared, the value of another rank does not matter.
                array = rank.value(variable) if known is None else known[rank.rank]
                result = rank.communicator.broadcast(array, shared=known)
                if rank.rank > 0:
                    rank.variables.assign(variable, result)


def _shared_with_rank_0(rank: Rank, variable: int) -> SharedArrays | None:
    """Return the arrays of all ranks if rank 0's value is, or can be put, where this rank's may go."""
    if rank.rank == 0:
        return rank.variables.shared_arrays(variable)
    shared = rank.variables.storage(variable)
    return shared if shared is not None and shared[0].shape == shared[rank.rank].shape else None


class HandOut:
    """Values on their way to the ranks.

    Parameters
    ----------
    run : Owner
    variables : sequence of int
        By identity.
    arrays : sequence of array or Data
        Their values.
    rows : sequence of sequence of Rows or None
        By variable, then by rank: what each gets; None where it keeps its value.
    """

    def __init__(
        self,
        run: Owner,
        variables: Sequence[int],
        arrays: Sequence[Any],
        rows: Sequence[Sequence[Rows | None]],
    ):
        self.variables = tuple(variables)
        self._run = run
        self._arrays = list(arrays)
        self._rows = rows

    @property
    def step(self) -> AssignStep:
        """The step of a sequence: what was there before is in use until it comes."""
        return self._assign(range(len(self._arrays)), written=frozenset())

    def steps(self) -> list[Any]:
        """Write what can be written now; return the steps that do the rest."""
        run, numbers = self._run, range(len(self._arrays))
        places = run.shared_storage.place(
            {self.variables[number]: self._shapes(number) for number in numbers}
        )
        written = [n for n in numbers if places[n] is not None and not isinstance(self._arrays[n], Data)]
        same = {n for n in written if self._is_same_for_all(n)}
        rest = [n for n in numbers if n not in same]
        # Staged first: where there is no room for it, nothing has changed.
        steps: list[Any] = [self._assign(rest, frozenset(written))] if rest else []
        if same:
            steps.append(BroadcastStep(tuple(self.variables[number] for number in sorted(same))))
        for number, array in zip(written, self._unshared(written, places), strict=True):
            self._write(number, array, places[number], only_own=number in same)
        return steps

    def _shapes(self, number: int) -> list[tuple[int, ...]]:
        """Return the shapes of all ranks' values when they have theirs."""
        array = self._arrays[number]
        present = self._run.shared_storage.shapes(self.variables[number])
        return [
            before if rows is None else (len(rows), *array.shape[1:]) if array.ndim else ()
            for rows, before in zip(self._rows[number], present, strict=True)
        ]

    def _is_same_for_all(self, number: int) -> bool:
        """Tell whether all ranks get the same rows: then they copy them from rank 0, at the same time."""
        first, *others = self._rows[number]
        return first is not None and all(rows is first for rows in others)

    def _unshared(self, written: Sequence[int], places: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the arrays; copies of those that are, themselves, where some variable lives."""
        arrays = [self._arrays[number] for number in written]
        if all(array.base is None for array in arrays):  # they have memory of their own
            return arrays
        shared = sorted(byte_bounds(place) for number in written for place in places[number])
        return [np.array(array) if _overlaps(byte_bounds(array), shared) else array for array in arrays]

    def _write(self, number: int, array: NDArray[Any], places: Any, only_own: bool) -> None:
        for rows, place in zip(self._rows[number][: 1 if only_own else None], places, strict=False):
            if rows is not None:
                copy_rows(array, rows, place)
        if only_own:
            self._run.shared_storage.take_stored(self.variables[number])

    def _assign(self, numbers: Sequence[int], written: frozenset[int]) -> AssignStep:
        indices = IndexList()
        spans = tuple(
            tuple(None if rows is None else indices.span(rows) for rows in self._rows[number])
            for number in numbers
        )
        refs = self._refs([None if number in written else self._arrays[number] for number in numbers])
        staged = indices.stage(self._run.temporary, (self, "indices"))
        return AssignStep(tuple(self.variables[number] for number in numbers), refs, spans, staged)

    def _refs(self, arrays: Sequence[Any]) -> tuple[messages.ArrayRef | None, ...]:
        """Return where ranks read arrays, those that are in private memory from one buffer."""
        plain = [array for array in arrays if isinstance(array, np.ndarray)]
        staged = iter(self._run.temporary.put_all((self,), plain) if plain else [])
        known = [array.ref() if isinstance(array, Data) else None for array in arrays]
        return tuple(
            next(staged) if isinstance(array, np.ndarray) else ref
            for array, ref in zip(arrays, known, strict=True)
        )


def _overlaps(bounds: tuple[int, int], shared: Sequence[tuple[int, int]]) -> bool:
    """Tell whether addresses are among those of arrays, which are in order and apart from each other."""
    before = bisect_left(shared, (bounds[1],))
    return before > 0 and bounds[0] < shared[before - 1][1]


def copy_rows(array: Any, rows: Rows, out: Any) -> None:
    """Copy rows of ``array``, or a 0-d array whole, to where they are to be."""
    if rows.indices is None:
        out[...] = array[rows.start : rows.stop] if array.ndim else array
    else:
        # Checked on the master, so nothing is clipped; but with "raise", NumPy copies them twice.
        np.take(array, rows.indices[rows.start : rows.stop], axis=0, out=out, mode="clip")
