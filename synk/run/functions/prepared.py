"""Commands that are prepared once and can be sent again and again.

A training loop calls a function thousands of times with the same Data and the same kind of selection. Such
calls differ only in the rows they read and in the values of small arrays, so they send the same steps, and
the checks of the first call need not be repeated.

    first call -> PreparedStep, with ReuseConditions -> PreparedCommand.run
    next call -> PreparedCommand.rows, if it repeats the first -> PreparedCommand.run: the same steps
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import Effect, State
from synk.run.arrays.run_memory import RunMemory
from synk.values import messages
from synk.values.by_value import Code
from synk.values.rows import contiguous

FLOATS = (float, np.float64)


class KnownInput(NamedTuple):
    """An input that a repeated call must have: the same Data in the same memory, or a similar array."""

    position: int  # among the inputs of the call
    data: weakref.ref[Any] | None  # the Data; None for an array, which must have the same dtype and shape
    ref: messages.ArrayRef  # of the Data, or of the staging buffer in which the ranks find the array


class ReuseConditions(NamedTuple):
    """The conditions under which a prepared step may be sent again.

    It names memory by references only: the traceback of a failed call must not keep segments mapped.
    """

    inputs: Sequence[KnownInput] = ()
    length: int | None = None  # number of rows of the Data from which ``batch`` selects
    indices: messages.ArrayRef | None = None  # of the staging buffer with the index list
    variables: Sequence[int] = ()  # identities of variables that must stay where they are in shared memory
    updates: Sequence[int] = ()  # identities of variables that the step changes; if one moves, prepare anew


class PreparedStep(NamedTuple):
    """One step of a command, after the check of its arguments."""

    step: Any
    finish: Callable[[Sequence[Any]], list[Any]] | None  # makes the script's values of the ranks' results
    reshapes: tuple[int, ...] = ()  # identities of variables whose number of rows may change
    reuse: ReuseConditions | None = None  # None if the step must be prepared anew each time
    code: Code | None = None  # the script's code that it runs
    failed: Callable[[], Effect] | None = None  # tells what the step has done, after a command has failed


class PreparedCommand:
    """The steps of one command, which may be sent again if the conditions of all steps hold.

    ``selected`` are the rows that the first call reads; a repeated call may give others to `run`. The command
    may be sent again only as long as the ``segments`` of its inputs, and the shared ``variables``
    (identities), stay where they are. ``effects`` are the effects of the steps on shared variables, in order.
    """

    def __init__(self, prepared: Sequence[PreparedStep], num_slices: int, effects: Sequence[Effect | None]):
        self.steps, *self.selected = _without_rows([entry.step for entry in prepared])
        self._finish = [(place, entry.finish) for place, entry in enumerate(prepared) if entry.finish]
        self._reshapes = [variable for entry in prepared for variable in entry.reshapes]
        self._failed = [entry.failed for entry in prepared if entry.failed]
        self._effects = effects
        self._change: tuple[State | None, State] = None, {}  # what is per rank before and after the last run
        self._num_slices = num_slices
        self._code = [entry.code for entry in prepared if entry.code]  # empty for most commands
        self._reuse = [entry.reuse for entry in prepared]
        self.is_reusable, self.segments, self.variables = False, set[int](), set[int]()

    def programs(self) -> list[tuple[int, int]]:
        """Return the number of each called function, with the number of slices."""
        return [(step.function, step.num_slices) for step in self.steps if isinstance(step, messages.Call)]

    def run(self, owner: Owner, start: int, stop: int) -> list[Any]:
        """Run the steps on rows ``start:stop``, and return the values of all steps for the script.

        Raises ValueError if a step needs a shared variable to be equal on all ranks, but it is per rank.
        """
        per_rank = owner.memory.per_rank
        now = per_rank.now
        before, after = self._change
        if now is not before and now != before:
            after = per_rank.after(self._effects)
            self._change = now, after
        if self._reshapes:
            # Before the command: if it ends in an exception, some ranks may have changed them.
            owner.memory.lengths.forget(self._reshapes)
        try:
            results = owner.run(self.steps, start, stop)
            per_rank.now = after
        except BaseException:  # a signal handler may raise between any two lines
            per_rank.note_failed([*self._effects, *[failed() for failed in self._failed]])
            raise
        values: list[Any] = []
        for position, finish in self._finish:
            values += finish(results[position])
        return values

    def keep(self, memory: RunMemory) -> None:
        """Prepare the command to be sent again, if all of its steps may be; ``is_reusable`` is True then."""
        array = memory.segments.array
        known = [entry for entry in self._reuse if entry is not None]
        calls = [step for step in self.steps if isinstance(step, messages.Call)]
        refs = [ref for call in calls for ref in (*call.inputs, call.indices) if ref is not None]
        self.segments = {ref.segment for ref in refs}
        self.variables = {one for entry in known for one in (*entry.variables, *entry.updates)}
        lengths = {entry.length for entry in known if entry.length is not None}
        watched: list[Any] = [memory.shared_storage.stored_arrays(entry.variables) for entry in known]
        if None in self._reuse or len(lengths) > 1 or None in watched:
            return
        inputs = [one for entry in known for one in entry.inputs]
        self._n_inputs = 1 + max((one.position for one in inputs), default=-1)
        self._data = [(place, data, ref) for place, data, ref in inputs if data is not None]
        self._arrays = [(place, array(ref)) for place, data, ref in inputs if data is None]
        self._stored = [one for of_entry in watched for one in of_entry]
        self._lists = [array(entry.indices) for entry in known if entry.indices is not None]
        self._unsigned = [indices.view(np.uint64) for indices in self._lists[:1]]
        self._length = min(lengths, default=None)
        self.is_reusable = True
        memory.remembered.add(self)

    def drop(self) -> None:
        """Drop the references to arrays whose memory is about to be freed; the command is not sent again."""
        self.is_reusable, self._stored, self._arrays, self._lists, self._unsigned = False, [], [], [], []

    def rows(self, values: Sequence[Any], batch: Any, num_slices: Any) -> tuple[int, int] | None:
        """Return the rows ``start, stop`` of a call with these arguments, if it may send this command again.

        Arrays among the inputs are copied into their staging buffers then. Return None if the call must be
        prepared anew.
        """
        if not self.is_reusable or type(num_slices) is not int or num_slices != self._num_slices:
            return None
        for storage, value in self._stored:
            if storage[0] is not value:
                return None
        if self._code and any(code.has_changed() for code in self._code):
            return None
        if len(values) != self._n_inputs:
            return None
        for position, data, ref in self._data:
            value = values[position]
            if data() is not value or value is None:
                return None
            if value.known_ref is not ref:
                return None
        for position, buffer in self._arrays:
            if not _fits(values[position], buffer):
                return None
        rows = self._listed(batch) if self._lists else self._contiguous_rows(batch)
        if rows is not None:
            for position, buffer in self._arrays:
                buffer[...] = values[position]
        return rows

    def _contiguous_rows(self, batch: Any) -> tuple[int, int] | None:
        """Return ``start, stop`` if ``batch`` selects contiguous rows by valid arguments, else None."""
        length = self._length
        if batch is None:
            return 0, length or 0
        if length is None:
            return None
        if type(batch) is int:
            return (0, batch) if 0 <= batch <= length else None
        if type(batch) is np.ndarray and batch.dtype.kind == "i" and batch.ndim == 1 and batch.size:
            rows = contiguous(batch)
            return None if rows is None or rows.start < 0 or rows.stop > length else (rows.start, rows.stop)
        if type(batch) is not slice or batch.step is not None:
            return None
        if type(batch.start) is not int or type(batch.stop) is not int:  # or a boolean, or a float
            return None
        start, stop, _ = batch.indices(length)
        return start, stop if stop > start else start

    def _listed(self, batch: Any) -> tuple[int, int] | None:
        """Copy an index list to where ranks read it, if it is as long as the first call's; else return None.

        The returned ``start, stop`` are positions in the list.
        """
        first = self._lists[0]
        if type(batch) is not np.ndarray or batch.dtype.kind != "i" or batch.shape != first.shape:
            return None
        for indices in self._lists:
            indices[...] = batch
        size = first.size
        # Negative numbers are large ones if read as unsigned, so one comparison finds all invalid rows. A
        # list of contiguous rows is prepared anew, as ranks read these in place.
        if np.maximum.reduce(self._unsigned[0]) >= self._length or first[-1] - first[0] == size - 1:
            return None
        return 0, size


def _fits(value: Any, buffer: Any) -> bool:
    """Return whether a value can be copied into the staging buffer of an input without any other check."""
    if type(value) is np.ndarray:
        return value.dtype == buffer.dtype and value.shape == buffer.shape
    return type(value) in FLOATS and buffer.dtype.char == "d" and not buffer.ndim


def _without_rows(steps: Sequence[Any]) -> tuple[tuple[Any, ...], int, int]:
    """Take the rows out of the steps if all read the same rows; return the steps, and ``start, stop``.

    The rows are sent beside the steps then, so that calls with other rows send the same steps.
    """
    spans = {step.batch for step in steps if isinstance(step, messages.Call) and step.batch is not None}
    if len(spans) != 1:
        return tuple(steps), 0, 0
    (span,) = spans
    open_span = messages.RowSpan(messages.IN_COMMAND, messages.IN_COMMAND, span.listed)
    changed = [
        replace(step, batch=open_span) if isinstance(step, messages.Call) and step.batch is not None else step
        for step in steps
    ]
    return tuple(changed), span.start, span.stop
