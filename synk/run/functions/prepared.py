"""Steps that are ready to be sent, once or again and again.

Arguments are checked and put into steps once. A training loop then calls with the same Data, and with the
same kind of selection, thousands of times: such a call differs in the rows that it reads, and in the values
of small arrays, so it sends the same steps.

    first call -> PreparedStep, with Lasting -> PreparedCommand.run
    next call -> PreparedCommand.rows, while all lasts -> PreparedCommand.run: the same steps
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
    """An input of a step: Data whose reference is unchanged, or an array of the same dtype and shape."""

    position: int  # among the inputs of the call
    data: weakref.ref[Any] | None  # None of an array
    ref: messages.ArrayRef  # of the Data, or of the buffer in which the ranks find the array


class Lasting(NamedTuple):
    """The conditions under which a prepared step may be sent again.

    It refers to memory without holding it: where a call fails, its traceback must keep nothing mapped.
    """

    inputs: Sequence[KnownInput] = ()
    length: int | None = None  # of the Data that ``batch`` selects from
    indices: messages.ArrayRef | None = None  # of the buffer in which the ranks find listed rows
    variables: Sequence[int] = ()  # shared ones, by identity, that live where all ranks find them


class PreparedStep(NamedTuple):
    """One checked step of a command, and what makes the caller's values of the ranks' results."""

    step: Any
    finish: Callable[[Sequence[Any]], list[Any]] | None  # None where there are no results
    reshapes: tuple[int, ...] = ()  # shared variables whose number of rows may change
    lasting: Lasting | None = None  # None where the step must be prepared anew each time
    code: Code | None = None  # of the script, that it runs


class PreparedCommand:
    """Steps that run together on every rank, and may be sent again if they last.

    They read the ``selected`` rows, unless a call that sends them again has others. They rely on the memory
    of ``segments``, that of inputs, and of shared ``variables``, by identity. The ``effects`` are those of
    the steps on shared variables, in order.
    """

    def __init__(self, prepared: Sequence[PreparedStep], num_slices: int, effects: Sequence[Effect | None]):
        self.steps, *self.selected = _told_once([entry.step for entry in prepared])
        self._finish = [(place, entry.finish) for place, entry in enumerate(prepared) if entry.finish]
        self._reshapes = [variable for entry in prepared for variable in entry.reshapes]
        self._effects = effects
        self._change: tuple[State | None, State] = None, {}  # of what is per rank: before and after a run
        self._num_slices = num_slices
        self._code = [entry.code for entry in prepared if entry.code]  # of most there is none
        self._lasting = [entry.lasting for entry in prepared]
        self.lasts, self.segments, self.variables = False, set[int](), set[int]()

    def programs(self) -> list[tuple[int, int]]:
        """Return the functions that are called, and in how many slices each."""
        return [(step.function, step.num_slices) for step in self.steps if isinstance(step, messages.Call)]

    def run(self, owner: Owner, start: int, stop: int) -> list[Any]:
        """Run the steps on these rows, and return what each makes of its results.

        Raises ValueError if a step takes a shared variable as equal on all ranks that is per rank.
        """
        per_rank = owner.memory.per_rank
        now = per_rank.now
        before, after = self._change
        if now is not before and now != before:
            after = per_rank.after(self._effects)
            self._change = now, after
        if self._reshapes:
            # Before the command, not after: it may end in an exception that leaves them half changed.
            owner.memory.lengths.forget(self._reshapes)
        try:
            results = owner.run(self.steps, start, stop)
            per_rank.now = after
        except BaseException:  # a signal handler may raise between any two lines
            per_rank.note_failed(self._effects)
            raise
        values: list[Any] = []
        for position, finish in self._finish:
            values += finish(results[position])
        return values

    def keep(self, memory: RunMemory) -> None:
        """Make it ready to be sent again, if all it was made of lasts."""
        array = memory.segments.array
        known = [entry for entry in self._lasting if entry is not None]
        calls = [step for step in self.steps if isinstance(step, messages.Call)]
        refs = [ref for call in calls for ref in (*call.inputs, call.indices) if ref is not None]
        self.segments = {ref.segment for ref in refs}
        self.variables = {variable for entry in known for variable in entry.variables}
        lengths = {entry.length for entry in known if entry.length is not None}
        watched: list[Any] = [memory.shared_storage.watched(entry.variables) for entry in known]
        if None in self._lasting or len(lengths) > 1 or None in watched:
            return
        inputs = [one for entry in known for one in entry.inputs]
        self._n_inputs = 1 + max((one.position for one in inputs), default=-1)
        self._data = [(place, data, ref) for place, data, ref in inputs if data is not None]
        self._arrays = [(place, array(ref)) for place, data, ref in inputs if data is None]
        self._stored = [one for of_entry in watched for one in of_entry]
        self._lists = [array(entry.indices) for entry in known if entry.indices is not None]
        self._unsigned = [indices.view(np.uint64) for indices in self._lists[:1]]
        self._length = min(lengths, default=None)
        self.lasts = True
        memory.remembered.add(self)

    def drop(self) -> None:
        """Forget the arrays, which ranks no longer share; the command is not sent again."""
        self.lasts, self._stored, self._arrays, self._lists, self._unsigned = False, [], [], [], []

    def rows(self, values: Sequence[Any], batch: Any, num_slices: Any) -> tuple[int, int] | None:
        """Return which rows a call on these inputs selects if it repeats this one, else None."""
        if not self.lasts or type(num_slices) is not int or num_slices != self._num_slices:
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
        rows = self._listed(batch) if self._lists else self._stretch(batch)
        if rows is not None:
            for position, buffer in self._arrays:
                buffer[...] = values[position]
        return rows

    def _stretch(self, batch: Any) -> tuple[int, int] | None:
        """Return the rows that are selected without a list."""
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
        """Give the ranks a list of rows, if it is as long as the last one."""
        first = self._lists[0]
        if type(batch) is not np.ndarray or batch.dtype.kind != "i" or batch.shape != first.shape:
            return None
        for indices in self._lists:
            indices[...] = batch
        size = first.size
        # As unsigned numbers negative ones are large. Rows next to each other are read in place instead.
        if np.maximum.reduce(self._unsigned[0]) >= self._length or first[-1] - first[0] == size - 1:
            return None
        return 0, size


def _fits(value: Any, buffer: Any) -> bool:
    """Return whether a value of an input needs no check, nor other memory, than the one before."""
    if type(value) is np.ndarray:
        return value.dtype == buffer.dtype and value.shape == buffer.shape
    return type(value) in FLOATS and buffer.dtype.char == "d" and not buffer.ndim


def _told_once(steps: Sequence[Any]) -> tuple[tuple[Any, ...], int, int]:
    """Return steps without the rows they read, and those rows, if all read the same.

    So the message of a call stays the same when its rows do not.
    """
    spans = {step.batch for step in steps if isinstance(step, messages.Call) and step.batch is not None}
    if len(spans) != 1:
        return tuple(steps), 0, 0
    (span,) = spans
    untold = messages.RowSpan(messages.IN_COMMAND, messages.IN_COMMAND, span.listed)
    told = [
        replace(step, batch=untold) if isinstance(step, messages.Call) and step.batch is not None else step
        for step in steps
    ]
    return tuple(told), span.start, span.stop
