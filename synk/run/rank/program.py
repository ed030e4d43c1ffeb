"""Run one function on one rank: on the rank's rows, slice by slice, adding up results and applying updates.

    ProgramSpec -> RankProgram.run(rows of this rank) -> Results

The compiled functions that it calls are in `Variants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from synk.compile.observe.debug import nan_allowed
from synk.compile.programs.emit import Observer
from synk.run.rank.compiled_calls import BoundFunction, RowlessCommunicator
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.run.rank.row_inputs import RowInput, numbers_of_rows, stand_in
from synk.run.rank.sums import Sums, to_host_if_large
from synk.run.rank.variants import ProgramContext, Variants
from synk.transport.comm import LoneCommunicator
from synk.values import messages
from synk.values.operations import identity
from synk.values.reduction import cast
from synk.values.rows import slices


class RankProgram:
    """A function on one rank; ``observe``, a parameter of `ArrayLinker`, is called around every node."""

    def __init__(self, spec: ProgramSpec, context: ProgramContext, observe: Observer | None = None):
        self.spec = spec
        self._context = context
        self._variables = context.variables
        self._device = context.device
        self._ranks = context.ranks
        self.variants = Variants(spec, context, observe)
        self.has_rows = spec.has_rows
        self._computes_with_numpy = context.device.xp is np
        self._last_numbers = (-1, -1, -1)  # the numbers of rows in the last call of one slice
        self._last_arrays: list[Any] = []  # the same as arrays

    def run(
        self,
        scattered: Sequence[RowInput],
        broadcast: Sequence[Any],
        sliced: Sequence[RowInput],
        *,
        total_rows: int,
        first_row: int,
        num_slices: int = 1,
    ) -> messages.Results | None:
        """Run on this rank's rows and apply the updates.

        Parameters
        ----------
        scattered, sliced : sequence of RowInput
            This rank's rows of the scattered inputs and of the sliceable variables; each has the same number.
        broadcast : sequence of array
        total_rows : int
            The number of rows of all ranks. If it is 0, each rank computes what one process would compute on
            empty input.
        first_row : int
            The number of this rank's first row among the rows of all ranks.
        num_slices : int
            The number of slices to compute one after the other.

        Returns
        -------
        Results or None
            None if this rank has no rows, but others have.
        """
        if not self.has_rows:
            return self.run_whole([], broadcast, 1, 1, 0)
        row_inputs = [*scattered, *sliced]
        mine = row_inputs[0].rows
        n_rows = mine.stop - mine.start
        if n_rows == 0 and total_rows:
            absent_arguments = self._absent_arguments(row_inputs, broadcast, total_rows, end=first_row)
            self._run_rowless(absent_arguments, num_slices)
            return None
        # With fewer rows than slices, the rank meets the others in the slices for which it has none.
        bounds = slices(n_rows, num_slices) or ((0, 0),)
        n_absent = num_slices - len(bounds) if self.spec.meets_every_slice and total_rows else 0
        if len(bounds) == 1 and not n_absent:
            rows = [entry.part(0, n_rows) for entry in row_inputs]
            return self.run_whole(rows, broadcast, n_rows, total_rows, first_row)
        results = self._run_sliced(bounds, row_inputs, broadcast, total_rows, first_row)
        if n_absent:
            end = first_row + n_rows
            self._meet_without_rows(self._absent_arguments(row_inputs, broadcast, total_rows, end), n_absent)
        return results

    def alone(self, arrays: Sequence[Any]) -> BoundFunction:
        """Return the function bound to ``arrays``: a call computes all outputs on this rank alone.

        ``arrays`` are the inputs as wholes, scattered ones first.
        """
        scattered, broadcast = arrays[: self.spec.n_scattered], arrays[self.spec.n_scattered :]
        rows = [*scattered, *(self._variables.on_host(identity) for identity in self.spec.sliceables)]
        n_rows = len(rows[0]) if rows else 1
        call = self.variants.whole if self._computes_with_numpy else self._whole_on_host
        return BoundFunction(call, self._arguments(rows, broadcast, *of_one_process(n_rows)))

    def _whole_on_host(self, arguments: Sequence[Any]) -> list[Any]:
        return [self._device.to_host(value) for value in self.variants.whole(arguments)]

    # --- the variants ------------------------------------------------------------------

    def run_whole(
        self, rows: Sequence[Any], broadcast: Sequence[Any], n_rows: int, total_rows: int, first_row: int
    ) -> messages.Results:
        """Run on these rows, in one slice; the numbers of rows are those of `run`."""
        numbers = (n_rows, total_rows, first_row)
        if numbers != self._last_numbers:
            self._last_numbers, self._last_arrays = numbers, self._numbers(*numbers)
        arguments = self._arguments(rows, broadcast, self._last_arrays, self._ranks.communicator)
        values = self.variants.whole(arguments)
        if not self._computes_with_numpy:
            values = [to_host_if_large(value, self._device) for value in values]
        return messages.Results(values, n_rows)

    def _run_sliced(
        self,
        bounds: Sequence[tuple[int, int]],
        row_inputs: Sequence[RowInput],
        broadcast: Sequence[Any],
        total_rows: int,
        first_row: int,
    ) -> messages.Results:
        """Run slice by slice, on rows ``start:stop`` of ``bounds``; then combine parts and apply updates."""
        sums = Sums(self.spec, self._device, n_rows=bounds[-1][1])
        compute = self.variants.divided if self.spec.parts else self.variants.sliced
        for start, stop in bounds:
            rows = [entry.part(start, stop) for entry in row_inputs]
            numbers = self._numbers(stop - start, total_rows, first_row + start)
            values = compute(self._arguments(rows, broadcast, numbers, self._ranks.communicator))
            sums.add(values, stop - start)
            for update, value in zip(self.spec.updates, values[len(self.spec.output_modes) :], strict=False):
                if update.advances:
                    self._variables.assign(update.variable, value)
            del rows, values  # so that the next slice can use their memory
        if self.spec.parts:
            numbers = self._numbers(bounds[-1][1], total_rows, first_row)
            parts = [
                in_dtype(value, dtype)
                for value, dtype in zip(sums.parts(), self.variants.part_dtypes, strict=True)
            ]
            sums.complete(self.variants.completed([*parts, *broadcast, *numbers, self._ranks.communicator]))
        for update, value in sums.updates():
            self._assign(update, value)
        return sums.results()

    def _meet_without_rows(self, arguments: Sequence[Any], times: int) -> Sequence[Any]:
        """Take part in the collectives of slices for which this rank has no rows, ``times`` slices.

        Returns the new values of updated variables that the last slice gives; they are not applied here.
        """
        values: Sequence[Any] = ()
        with nan_allowed(self.variants.mode):
            for _ in range(times):
                values = self.variants.sliced(arguments)[len(self.spec.output_modes) :]
        return values

    def _run_rowless(self, arguments: Sequence[Any], num_slices: int) -> None:
        """Run a call in which this rank has no rows but others have: meet them, and apply the updates."""
        updates = self.spec.updates
        times = num_slices if self.spec.meets_every_slice else 1
        results = (
            self._meet_without_rows(arguments, times) if self.spec.needs_ranks else [None] * len(updates)
        )
        if any(update.is_rowless for update in updates):
            self.variants.rowless(arguments)
        for update, result in zip(updates, results, strict=True):
            if update.is_collective:
                self._assign(update, result)
            elif update.needs_rows:
                value = self._variables.value(update.variable)
                on_host = isinstance(value, np.ndarray | np.generic)
                nothing = identity(update.mode, value, np if on_host else self._device.xp)
                if nothing is not None:
                    self._assign(update, nothing)

    def _assign(self, update: UpdateSpec, value: Any) -> None:
        """Assign the new value of an update, in the dtype of its variable."""
        dtype = getattr(self._variables[update.variable].type, "dtype", None)
        self._variables.assign(update.variable, in_dtype(value, dtype))

    # --- watching --------------------------------------------------------------------------------

    def observed(self, observe: Observer) -> RankProgram:
        """Return the same function, to be compiled anew so that ``observe`` is called around every node.

        Compiling it raises TypeError if the function was given a PyTensor mode that makes no array programs.
        """
        return RankProgram(self.spec, self._context, observe)

    # --- arguments ---------------------------------------------------------------------------

    def _arguments(
        self, rows: Sequence[Any], broadcast: Sequence[Any], numbers: Sequence[Any], ranks: Any
    ) -> list[Any]:
        """Return the arguments in the graph's order: scattered, broadcast, sliced, numbers of rows, ranks."""
        n_scattered = self.spec.n_scattered
        return [*rows[:n_scattered], *broadcast, *rows[n_scattered:], *numbers, ranks]

    def _absent_arguments(
        self, row_inputs: Sequence[RowInput], broadcast: Sequence[Any], total_rows: int, end: int
    ) -> list[Any]:
        """Return the arguments for a slice in which this rank has no rows; its rows end before ``end``.

        One row stands in, since a maximum of no rows, for example, would fail. The `RowlessCommunicator`
        keeps it from adding anything to the results of other ranks.
        """
        rows = [stand_in(entry) for entry in row_inputs]
        first_row = max(end - 1, 0)
        numbers = numbers_of_rows(1, total_rows, first_row, leads=False)
        return self._arguments(rows, broadcast, numbers, RowlessCommunicator(self._ranks.communicator))

    def _numbers(self, n_rows: int, total_rows: int, first_row: int) -> list[Any]:
        """Return the `numbers_of_rows` of a slice, which tell where it is among the rows of the call."""
        # If nothing is scattered, or no rank has rows, all ranks compute the same, and rank 0 leads.
        leads = first_row == 0 if self.has_rows and total_rows else self._ranks.rank == 0
        return numbers_of_rows(n_rows, total_rows, first_row, leads)


@lru_cache(maxsize=8)  # without it, a call of microseconds would take half as long again
def of_one_process(n_rows: int) -> tuple[list[Any], LoneCommunicator]:
    """Return the numbers of rows, and the communicator, for one process that has all rows."""
    return numbers_of_rows(n_rows, n_rows, 0, True), LoneCommunicator()


def in_dtype(value: Any, dtype: Any) -> Any:
    """Return a value in ``dtype``, on the host or the device where it is; unchanged if that is None."""
    if isinstance(value, np.ndarray | np.generic):
        return cast(value, dtype)
    return value if dtype is None or value.dtype == dtype else value.astype(dtype)
