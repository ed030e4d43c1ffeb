"""One function as one rank runs it: compiled graph, slices accumulated, updates applied.

    ProgramSpec -> RankProgram.run(rows of this rank) -> Results

A program compiles up to three variants, each when first needed: ``whole`` for one slice, with
updates in place; ``sliced`` for several, with updates as outputs, so that every slice sees the
original values; ``rowless`` for a rank without rows, with the updates that need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

from synk.arrays.variables import RankVariables
from synk.comm import LoneCommunicator
from synk.compile.emit import Observer
from synk.compile.graphs import serialize
from synk.compile.observe.debug import Debug, of_nothing
from synk.compile.observe.profile import observed_mode
from synk.compile.passes.finish import Announcer
from synk.device import Device
from synk.rank.calling import Absent, Direct, called_on_host
from synk.rank.spec import ProgramSpec, UpdateSpec
from synk.rank.sums import Sums, small_stay
from synk.values import messages
from synk.values.reduction import cast, identity
from synk.values.rows import Rows, slices

UNKNOWN = (
    "a worker knows what the script had defined when it was forked: define Ops, and functions that graphs "
    "use, before synk.fork() or in a module, or call synk.restart() after defining them"
)


class ProgramContext(NamedTuple):
    """The parts of a rank that its programs use."""

    device: Device
    variables: RankVariables
    ranks: Any  # whose communicator is the present one
    compiling: Callable[[], AbstractContextManager[None]]  # entered while it compiles
    announcer: Announcer | None  # learns what is final while it runs


@dataclass(slots=True)
class RowInput:
    """An array and the rows of it that belong to this rank."""

    array: Any
    rows: Rows
    room: Any = None  # where listed rows are gathered, as of `Rows.of`

    def part(self, start: int, stop: int) -> Any:
        rows = self.rows
        if rows.indices is None:
            return self.array[rows.start + start : rows.start + stop]
        return rows.part(start, stop).of(self.array, self.room)


class RankProgram:
    """A function, compiled for this rank; with ``observe``, as of `ArrayLinker`, around every node."""

    def __init__(self, spec: ProgramSpec, context: ProgramContext, observe: Observer | None = None):
        self.spec = spec
        self._context = context
        self._variables = context.variables
        self._device = context.device
        self._ranks = context.ranks
        self._compiling = context.compiling
        self._announcer = context.announcer
        # Whether it computes on the rank's device, not in a mode that the function was given.
        self.on_device = spec.mode in (None, "debug")
        self.has_rows = spec.has_rows
        self._computes_with_numpy = context.device.xp is np
        self._mode, self._sliced_mode = self._chosen_modes(observe)
        self._count = np.asarray(1, dtype="int64")  # of the last call's rows
        # What the variant for one slice will tell of; ranks know it of the same functions, whatever they ran.
        self.announced: Mapping[int, Any] = {}

    def compile(self, num_slices: int = 1) -> None:
        """Compile what most calls in so many slices need, if that has not happened yet."""
        self._whole  # noqa: B018  (cached on first access)
        if num_slices > 1 and self.spec.has_rows:
            self._sliced  # noqa: B018

    def run(
        self,
        scattered: Sequence[RowInput],
        broadcast: Sequence[Any],
        sliced: Sequence[RowInput],
        *,
        any_rows: bool = True,
        num_slices: int = 1,
    ) -> messages.Results | None:
        """Run on this rank's rows and apply the updates.

        Parameters
        ----------
        scattered, sliced : sequence of RowInput
            This rank's rows of the scattered inputs and of the sliceable variables, equally many.
        broadcast : sequence of array
        any_rows : bool
            Whether any rank has rows. If none has, each computes what one process would on
            empty input.
        num_slices : int
            Slices to compute one after the other.

        Returns
        -------
        Results or None
            None where this rank has no rows.
        """
        if not self.has_rows:
            return self.run_whole([], broadcast, 1)
        row_inputs = [*scattered, *sliced]
        rows = row_inputs[0].rows
        n_rows = rows.stop - rows.start
        if n_rows == 0 and any_rows:
            self._attend(row_inputs, broadcast, num_slices)
            self._run_rowless(broadcast)
            return None
        parts = slices(n_rows, num_slices) or ((0, 0),)
        absent = num_slices - len(parts) if self.spec.needs_ranks and any_rows else 0
        if len(parts) == 1 and not absent:
            return self.run_whole([entry.part(0, n_rows) for entry in row_inputs], broadcast, n_rows)
        results = self._run_sliced(parts, row_inputs, broadcast)
        self._attend(row_inputs, broadcast, absent)
        return results

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        """Run as one process would, on all rows of ``arrays``; return all outputs."""
        scattered, broadcast = arrays[: self.spec.n_scattered], arrays[self.spec.n_scattered :]
        rows = [*scattered, *(self._variables.on_host(identity) for identity in self.spec.sliceables)]
        n_rows = len(rows[0]) if rows else 1
        arguments = [*self._arguments(rows, broadcast, n_rows)[:-1], LoneCommunicator()]
        values = self._whole(arguments)
        return [self._device.to_host(value) for value in values]

    # --- the three variants ------------------------------------------------------------------

    def run_whole(self, rows: Sequence[Any], broadcast: Sequence[Any], n_rows: int) -> messages.Results:
        """Run on these rows, in one slice."""
        n_scattered = self.spec.n_scattered
        if self._count != n_rows:
            self._count = np.asarray(n_rows, dtype="int64")
        # As `_arguments` puts them, without a call.
        arguments = [
            *rows[:n_scattered],
            *broadcast,
            *rows[n_scattered:],
            self._count,
            self._ranks.communicator,
        ]
        values = self._whole(arguments)
        if not self._computes_with_numpy:
            values = [small_stay(value, self._device) for value in values]
        return messages.Results(values, n_rows)

    def _run_sliced(
        self,
        parts: Sequence[tuple[int, int]],
        row_inputs: Sequence[RowInput],
        broadcast: Sequence[Any],
    ) -> messages.Results:
        sums = Sums(self.spec, self._device, n_rows=parts[-1][1])
        for start, stop in parts:
            rows = [entry.part(start, stop) for entry in row_inputs]
            values = self._sliced(self._arguments(rows, broadcast, stop - start))
            sums.add(values, stop - start)
            for update, value in zip(self.spec.updates, values[len(self.spec.output_modes) :], strict=True):
                if update.advances:
                    self._variables.assign(update.variable, value)
            del rows, values  # the next slice may have their memory
        for update, value in sums.updates():
            self._assign(update, value)
        return sums.results()

    def _attend(self, row_inputs: Sequence[RowInput], broadcast: Sequence[Any], times: int) -> None:
        """Meet the others in slices for which this rank has no rows, and change nothing."""
        if self.spec.needs_ranks:
            *arguments, ranks = self._arguments([entry.part(0, 0) for entry in row_inputs], broadcast, 0)
            with of_nothing(self._sliced_mode):
                for _ in range(times):
                    self._sliced([*arguments, Absent(ranks)])

    def _run_rowless(self, broadcast: Sequence[Any]) -> None:
        if not all(update.needs_rows for update in self.spec.updates):
            self._rowless(broadcast)
        for update in self.spec.updates:
            if update.needs_rows:
                value = self._variables.value(update.variable)
                on_host = isinstance(value, np.ndarray | np.generic)
                nothing = identity(update.mode, value, np if on_host else self._device.xp)
                if nothing is not None:
                    self._assign(update, nothing)

    def _assign(self, update: UpdateSpec, value: Any) -> None:
        dtype = getattr(self._variables[update.variable].type, "dtype", None)
        if isinstance(value, np.ndarray | np.generic):
            value = cast(value, dtype)
        elif dtype is not None and value.dtype != dtype:
            value = value.astype(dtype)  # on the device
        self._variables.assign(update.variable, value)

    # --- watching --------------------------------------------------------------------------------

    def observed(self, observe: Observer) -> RankProgram:
        """Return the same function to be compiled anew, with ``observe`` around every node.

        Raises TypeError if the function was given a mode without an array program.
        """
        return RankProgram(self.spec, self._context, observe)

    def _chosen_modes(self, observe: Observer | None) -> tuple[Any, Any]:
        """Return how to compile for one slice, which is announced, and for several."""
        if not self.on_device:
            mode = self.spec.mode if observe is None else observed_mode(self.spec.mode, observe)
            return mode, mode
        announcer = self._announcer
        if self.spec.mode == "debug":
            observe, announcer = observe or Debug(xp=self._device.xp), None
        return self._device.mode(observe, announcer), self._device.mode(observe)

    # --- compilation ---------------------------------------------------------------------------

    def _arguments(self, rows: Sequence[Any], broadcast: Sequence[Any], n_rows: int) -> list[Any]:
        """Put arguments in the graph's order: scattered, broadcast, sliced, n_rows, ranks."""
        n_scattered = self.spec.n_scattered
        count = np.asarray(n_rows, dtype="int64")
        return [*rows[:n_scattered], *broadcast, *rows[n_scattered:], count, self._ranks.communicator]

    @cached_property
    def _graph(self) -> tuple[list[Any], list[Any]]:
        try:
            inputs, outputs = serialize.loads(self.spec.graph, self._variables.__getitem__)
        except AttributeError as error:  # of pickle, which looks for what the graph uses by its name
            error.add_note(UNKNOWN)
            raise
        return list(inputs), list(outputs)

    @cached_property
    def _whole(self) -> Callable[..., Any]:
        inputs, results = self._graph
        n_outputs = len(self.spec.output_modes)
        if self._announcer is not None:
            self._announcer.told()  # of other variants and programs
        compiled = self._compiled(inputs, results[:n_outputs], self._update_pairs(lambda update: True))
        self.announced = {} if self._announcer is None else self._announcer.told()
        return compiled

    @cached_property
    def _sliced(self) -> Callable[..., Any]:
        return self._compiled(*self._graph, [], self._sliced_mode)

    @cached_property
    def _rowless(self) -> Callable[..., Any]:
        inputs, _ = self._graph
        start = self.spec.n_scattered
        broadcast = inputs[start : start + self.spec.n_broadcast]
        pairs = self._update_pairs(lambda update: not update.needs_rows)
        return self._compiled(broadcast, _draws([expression for _, expression in pairs]), pairs)

    def _update_pairs(self, wanted: Callable[[UpdateSpec], bool]) -> list[tuple[Any, Any]]:
        expressions = self._graph[1][len(self.spec.output_modes) :]
        return [
            (self._variables[update.variable], expression)
            for update, expression in zip(self.spec.updates, expressions, strict=True)
            if wanted(update)
        ]

    def _compiled(
        self, inputs: list[Any], outputs: list[Any], updates: list[Any], mode: Any = None
    ) -> Callable[..., Any]:
        with self._compiling():
            compiled = pytensor.function(
                inputs,
                outputs,
                updates=updates,
                mode=mode or self._mode,
                name=self.spec.name,
                on_unused_input="ignore",
                trust_input=True,  # the master checked them
            )
        if self.on_device:
            return Direct(compiled, len(outputs))
        return partial(called_on_host, compiled, self._device.to_host)


def _draws(expressions: Sequence[Any]) -> list[Any]:
    """Return the draws of random variables on the way to ``expressions``.

    Unread draws are rewritten away, and then the state would not advance as it does elsewhere.
    """
    nodes = {variable.owner for variable in ancestors(expressions) if variable.owner is not None}
    return [node.default_output() for node in nodes if isinstance(node.op, RandomVariable)]
