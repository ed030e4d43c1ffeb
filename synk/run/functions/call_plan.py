"""Plan one call before anything is sent: check its inputs, and decide which rows of them it reads.

    inputs, options -> plan_call -> CallPlan -> step: arrays copied into staging buffers, a `messages.Call`
                                             -> reuse: the conditions for sending the step again

A plan is made without any process; only `CallPlan.step` writes, to shared memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synk.exact.definition import Definition
from synk.run.arrays.data import Data
from synk.run.functions.announced_rows import AnnouncedRows
from synk.run.functions.prepared import KnownInput, ReuseConditions
from synk.run.functions.selections import (
    CallOptions,
    IndexList,
    Selection,
    as_input,
    check_data,
    common_length,
    is_gathered,
    select_batch,
    select_following,
    select_shares,
)
from synk.transport.memory.segments import StagingBuffers
from synk.values import messages
from synk.values.checks import checked_count
from synk.values.rows import SelectedRows, split


@dataclass(frozen=True)
class CallPlan:
    """One call of a function after its check.

    Attributes
    ----------
    inputs : sequence of Data or array
        Scattered inputs, then broadcast ones; arrays have the types of their variables.
    n_scattered : int
        The number of scattered inputs.
    length : int or None
        The number of rows of each scattered input, from `selections.common_length`.
    selected : Selection
        The rows that the call reads.
    num_slices : int
    """

    inputs: Sequence[Any]
    n_scattered: int
    length: int | None
    selected: Selection
    num_slices: int

    def whole_inputs(self) -> list[Any]:
        """Return the inputs as arrays for one process: of scattered inputs the selected rows, others all."""
        rows, arrays = self.selected.batch, []
        for position, entry in enumerate(self.inputs):
            array = entry.data if isinstance(entry, Data) else entry
            if rows is not None and position < self.n_scattered:
                paired = isinstance(entry, Data) and entry.minibatch
                array = array[: len(rows)] if paired else rows.of(array)
            arrays.append(array)
        return arrays

    def step(self, function: int, staging: StagingBuffers, announced: AnnouncedRows) -> messages.Call:
        """Copy plain arrays, only the selected rows, into staging buffers; return the step of the call.

        Rows that were ``announced`` for this call are not gathered again; those of the next call are
        announced.
        """
        scattered, selected = self.inputs[: self.n_scattered], self.selected
        # Row i of a staged array is the i-th selected row, as in minibatch Data.
        paired = tuple([not is_gathered(entry) for entry in scattered])
        inputs = tuple([self._staged(at, (function, at), staging) for at in range(len(self.inputs))])
        gathered = announced.take(scattered, selected)
        indices, batch, shares, ahead = IndexList(), None, None, None
        if selected.batch is not None:
            # If all inputs consist of the selected rows only, no rank needs the indices.
            batch = indices.span(SelectedRows(0, len(selected.batch)) if all(paired) else selected.batch)
        if selected.shares is not None:
            shares = tuple([indices.span(rows) for rows in selected.shares])
        if selected.following is not None:
            ahead = messages.Ahead(announced.token, indices.span(selected.following))
        return messages.Call(
            function=function,
            inputs=inputs,
            batch=batch,
            minibatch=paired,
            shares=shares,
            indices=indices.stage(staging, (function, "indices")),
            num_slices=self.num_slices,
            gathered=gathered,
            ahead=ahead,
        )

    def _staged(self, position: int, key: tuple[Any, ...], staging: StagingBuffers) -> messages.ArrayRef:
        """Return the reference by which ranks find an input; stage it first if it is a plain array."""
        entry, rows = self.inputs[position], self.selected.batch
        if isinstance(entry, Data):
            return entry.ref()
        selects = rows is not None and position < self.n_scattered
        return staging.put(key, rows.of(entry) if rows is not None and selects else entry)

    def reuse(self, step: messages.Call) -> ReuseConditions | None:
        """Return the conditions under which a later call may send this step again; None if none may."""
        if self.selected.shares is not None or step.gathered or (self.n_scattered and self.length is None):
            return None  # numbers of rows, or announced rows, differ from call to call: a new plan is needed
        inputs = [
            KnownInput(position, weakref.ref(entry) if isinstance(entry, Data) else None, ref)
            for position, (entry, ref) in enumerate(zip(self.inputs, step.inputs, strict=True))
        ]
        return ReuseConditions(inputs, self.length, step.indices)


def plan_call(
    definition: Definition,
    values: Sequence[Any],
    options: CallOptions,
    lengths: Sequence[Sequence[int]],
    n_ranks: int,
    reads_in_place: bool,
) -> CallPlan:
    """Check a call, and decide which rows it reads.

    Parameters
    ----------
    definition : Definition
    values : sequence of Data or array_like
        One for each input.
    options : CallOptions
    lengths : sequence of sequence of int
        The numbers of rows of each sliceable shared variable, by rank.
    n_ranks : int
    reads_in_place : bool
        Whether ranks read contiguous rows in place, without gathering them.

    Raises
    ------
    IndexError, TypeError, ValueError
        If an input does not fit its variable, rows are selected that are not there, scattered inputs and
        sliceable variables have other numbers of rows, or the function cannot be computed in slices.
    """
    inputs = [
        _checked(variable, value) for variable, value in zip(definition.all_inputs, values, strict=True)
    ]
    variables = definition.inputs
    scattered = inputs[: len(variables)]
    length = common_length(scattered)
    batch, shares, following = None, None, None
    if scattered:
        batch = select_batch(variables, scattered, options.batch, length)
        if options.next_batch is not None:
            following = select_following(variables, scattered, options.next_batch, reads_in_place)
    if definition.sliceables:
        shares = select_shares(definition.sliceables, lengths, options.batch_s)
        if batch is not None:
            _check_counts(batch, tuple(len(rows) for rows in shares), n_ranks)
    if checked_count("num_slices", options.num_slices) > 1 and definition.needs_all_rows:
        raise ValueError(
            f"num_slices={options.num_slices}, but {definition.name!r} needs all rows at once: "
            f"{definition.needs_all_rows}; pass num_slices=1, or declare how slices and ranks combine"
        )
    return CallPlan(inputs, len(scattered), length, Selection(batch, shares, following), options.num_slices)


def _checked(variable: Any, value: Any) -> Any:
    """Return Data unchanged, another input as an array of the variable's type; raise if it does not fit."""
    if not isinstance(value, Data):
        return as_input(variable, value)
    check_data(variable, value)
    return value


def _check_counts(batch: SelectedRows, sliced: tuple[int, ...], n_ranks: int) -> None:
    """Raise ValueError unless each rank gets as many rows of scattered inputs as of sliceable variables."""
    counts = tuple(stop - start for start, stop in split(len(batch), n_ranks))
    if sliced != counts:
        raise ValueError(
            f"scattered inputs give the ranks {counts} rows, sliceable variables {sliced}; "
            "select equally many with batch and batch_s"
        )
