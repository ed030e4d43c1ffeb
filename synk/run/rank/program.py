"""One function as one rank runs it: compiled graph, slices accumulated, updates applied.

    ProgramSpec -> RankProgram.run(rows of this rank) -> Results

A program compiles variants, each when first needed: ``whole`` for one slice, with
updates in place; ``sliced`` for several, with updates as outputs, so that every slice sees the
original values, and for slices without rows, in which a rank only meets the others; ``rowless`` for a rank
without rows, with the updates that need neither rows nor the other ranks.

Where ranks meet only to combine parts, they do so once a call. In the place of ``sliced`` there are two:

    rows of a slice -> divided -> results, parts -> Sums
    parts of all slices -> completed, in which the ranks meet -> what is made of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

from synk.compile.observe.debug import Debug, nan_allowed
from synk.compile.observe.profile import observed_mode
from synk.compile.programs.emit import Observer
from synk.compile.programs.graphs import serialize
from synk.compile.programs.graphs.inside import for_mode
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.rewriting.rewritten import dumps, linked, loads, rewritten
from synk.compile.rewriting.wrong_rewrites import without_wrong
from synk.run.arrays.variables import RankVariables
from synk.run.device import Device
from synk.run.rank.compiled_calls import Absent, BoundFunction, Direct, called_on_host
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.run.rank.row_inputs import RowInput, numbers_of_rows, stand_in
from synk.run.rank.sums import Sums, small_stay
from synk.transport.comm import LoneCommunicator
from synk.values import messages
from synk.values.by_value import UNKNOWN
from synk.values.reduction import cast, identity
from synk.values.rows import slices


class ProgramContext(NamedTuple):
    """The parts of a rank that its programs use."""

    device: Device
    variables: RankVariables
    ranks: Any  # whose communicator is the present one
    compiling: Callable[[], AbstractContextManager[None]]  # entered while it compiles


class Written(NamedTuple):
    """A function as ``pytensor.function`` is given it."""

    inputs: list[Any]
    outputs: list[Any]
    updates: Sequence[tuple[Any, Any]] = ()


class RankProgram:
    """A function, compiled for this rank; with ``observe``, as of `ArrayLinker`, around every node."""

    def __init__(self, spec: ProgramSpec, context: ProgramContext, observe: Observer | None = None):
        self.spec = spec
        self._context = context
        self._variables = context.variables
        self._device = context.device
        self._ranks = context.ranks
        self._compiling = context.compiling
        # Whether it computes on the rank's device, not in a mode that the function was given.
        self.on_device = spec.mode in (None, "debug")
        self.has_rows = spec.has_rows
        self._computes_with_numpy = context.device.xp is np
        self._mode = self._chosen_mode(observe)
        self._last_numbers = (-1, -1, -1)  # of rows, in the last call of one slice; as arrays:
        self._last_arrays: list[Any] = []
        self._given: dict[str, bytes] = {}  # rewritten graphs, by variant
        self._identities: dict[Any, int] = {}  # of the shared variables in its graphs

    def compile(self, num_slices: int, graphs: Mapping[str, bytes]) -> None:
        """Compile what most calls in so many slices need, if that has not happened yet.

        Of ``graphs``, by variant, those that this rank needs need no rewriting; see `graphs`.
        """
        self._given.update(graphs)
        for variant in self._variants(num_slices):
            getattr(self, f"_{variant}")  # cached on first access

    def _variants(self, num_slices: int) -> tuple[str, ...]:
        if num_slices == 1 or not self.spec.has_rows:
            return ("whole",)
        if self.spec.parts:
            return ("divided", "completed")
        return ("sliced",) if self.spec.updates else ("whole",)

    def graphs(self, num_slices: int) -> dict[str, bytes]:
        """Return the rewritten graphs of what `compile` compiles, by variant, for all ranks.

        Without those that cannot be pickled, which could as they were written: each rank rewrites them.
        """
        if not self.on_device:
            return {}
        variants = self._variants(num_slices)
        for variant in variants:
            if variant not in self._given:
                with self._compiling(), suppress(TypeError):
                    self._given[variant] = dumps(self._rewritten(variant), self._identities.__getitem__)
        return {variant: self._given[variant] for variant in variants if variant in self._given}

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
            This rank's rows of the scattered inputs and of the sliceable variables, equally many.
        broadcast : sequence of array
        total_rows : int
            Rows of all ranks. If there are none, each rank computes what one process would on
            empty input.
        first_row : int
            The number, among those, of this rank's first row.
        num_slices : int
            Slices to compute one after the other.

        Returns
        -------
        Results or None
            None where this rank has no rows.
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
        bounds = slices(n_rows, num_slices) or ((0, 0),)
        absent = num_slices - len(bounds) if self.spec.meets_every_slice and total_rows else 0
        if len(bounds) == 1 and not absent:
            rows = [entry.part(0, n_rows) for entry in row_inputs]
            return self.run_whole(rows, broadcast, n_rows, total_rows, first_row)
        results = self._run_sliced(bounds, row_inputs, broadcast, total_rows, first_row)
        if absent:
            end = first_row + n_rows
            self._attend(self._absent_arguments(row_inputs, broadcast, total_rows, end), absent)
        return results

    def alone(self, arrays: Sequence[Any]) -> BoundFunction:
        """Return a call as one process would make it, on all rows of what ``arrays`` hold then.

        It returns all outputs.
        """
        scattered, broadcast = arrays[: self.spec.n_scattered], arrays[self.spec.n_scattered :]
        rows = [*scattered, *(self._variables.on_host(identity) for identity in self.spec.sliceables)]
        n_rows = len(rows[0]) if rows else 1
        call = self._whole if self._computes_with_numpy else self._whole_on_host
        return BoundFunction(call, self._arguments(rows, broadcast, *of_one_process(n_rows)))

    def _whole_on_host(self, arguments: Sequence[Any]) -> list[Any]:
        return [self._device.to_host(value) for value in self._whole(arguments)]

    # --- the variants ------------------------------------------------------------------

    def run_whole(
        self, rows: Sequence[Any], broadcast: Sequence[Any], n_rows: int, total_rows: int, first_row: int
    ) -> messages.Results:
        """Run on these rows, in one slice."""
        numbers = (n_rows, total_rows, first_row)
        if numbers != self._last_numbers:
            self._last_numbers, self._last_arrays = numbers, self._numbers(*numbers)
        arguments = self._arguments(rows, broadcast, self._last_arrays, self._ranks.communicator)
        values = self._whole(arguments)
        if not self._computes_with_numpy:
            values = [small_stay(value, self._device) for value in values]
        return messages.Results(values, n_rows)

    def _run_sliced(
        self,
        bounds: Sequence[tuple[int, int]],
        row_inputs: Sequence[RowInput],
        broadcast: Sequence[Any],
        total_rows: int,
        first_row: int,
    ) -> messages.Results:
        sums = Sums(self.spec, self._device, n_rows=bounds[-1][1])
        compute = self._divided if self.spec.parts else self._sliced
        for start, stop in bounds:
            rows = [entry.part(start, stop) for entry in row_inputs]
            numbers = self._numbers(stop - start, total_rows, first_row + start)
            values = compute(self._arguments(rows, broadcast, numbers, self._ranks.communicator))
            sums.add(values, stop - start)
            for update, value in zip(self.spec.updates, values[len(self.spec.output_modes) :], strict=False):
                if update.advances:
                    self._variables.assign(update.variable, value)
            del rows, values  # the next slice may have their memory
        if self.spec.parts:
            numbers = self._numbers(bounds[-1][1], total_rows, first_row)
            parts = [
                in_dtype(value, part.type.dtype)
                for value, part in zip(sums.parts(), self._graph[2], strict=True)
            ]
            sums.complete(self._completed([*parts, *broadcast, *numbers, self._ranks.communicator]))
        for update, value in sums.updates():
            self._assign(update, value)
        return sums.results()

    def _attend(self, arguments: Sequence[Any], times: int) -> Sequence[Any]:
        """Meet the others in slices for which this rank has no rows; return the updates of the last slice.

        None of them is made here.
        """
        values: Sequence[Any] = ()
        with nan_allowed(self._mode):
            for _ in range(times):
                values = self._sliced(arguments)[len(self.spec.output_modes) :]
        return values

    def _run_rowless(self, arguments: Sequence[Any], num_slices: int) -> None:
        updates = self.spec.updates
        times = num_slices if self.spec.meets_every_slice else 1
        met = self._attend(arguments, times) if self.spec.needs_ranks else [None] * len(updates)
        if any(update.is_rowless for update in updates):
            self._rowless(arguments)
        for update, value_met in zip(updates, met, strict=True):
            if update.is_met:
                self._assign(update, value_met)
            elif update.needs_rows:
                value = self._variables.value(update.variable)
                on_host = isinstance(value, np.ndarray | np.generic)
                nothing = identity(update.mode, value, np if on_host else self._device.xp)
                if nothing is not None:
                    self._assign(update, nothing)

    def _assign(self, update: UpdateSpec, value: Any) -> None:
        dtype = getattr(self._variables[update.variable].type, "dtype", None)
        self._variables.assign(update.variable, in_dtype(value, dtype))

    # --- watching --------------------------------------------------------------------------------

    def observed(self, observe: Observer) -> RankProgram:
        """Return the same function to be compiled anew, with ``observe`` around every node.

        Raises TypeError if the function was given a mode without an array program.
        """
        return RankProgram(self.spec, self._context, observe)

    def _chosen_mode(self, observe: Observer | None) -> Any:
        """Return the PyTensor Mode to compile with."""
        if not self.on_device:
            written = self.spec.mode
            return without_wrong(written) if observe is None else observed_mode(written, observe)
        if self.spec.mode == "debug":
            observe = observe or Debug(xp=self._device.xp)
        return self._device.mode(observe)

    # --- compilation ---------------------------------------------------------------------------

    def _arguments(
        self, rows: Sequence[Any], broadcast: Sequence[Any], numbers: Sequence[Any], ranks: Any
    ) -> list[Any]:
        """Put arguments in the graph's order: scattered, broadcast, sliced, numbers of rows, ranks."""
        n_scattered = self.spec.n_scattered
        return [*rows[:n_scattered], *broadcast, *rows[n_scattered:], *numbers, ranks]

    def _absent_arguments(
        self, row_inputs: Sequence[RowInput], broadcast: Sequence[Any], total_rows: int, end: int
    ) -> list[Any]:
        """Return the arguments of a slice for which this rank, whose rows end before ``end``, has none.

        A row stands in, since a maximum of none, for example, would fail; to the others it adds nothing.
        """
        rows = [stand_in(entry) for entry in row_inputs]
        first_row = max(end - 1, 0)
        numbers = numbers_of_rows(1, total_rows, first_row, leads=False)
        return self._arguments(rows, broadcast, numbers, Absent(self._ranks.communicator))

    def _numbers(self, n_rows: int, total_rows: int, first_row: int) -> list[Any]:
        """Return `numbers_of_rows` of a slice, which tell where it is among the rows of the call."""
        # Where nothing is scattered, or no rank has rows, all compute the same.
        leads = first_row == 0 if self.has_rows and total_rows else self._ranks.rank == 0
        return numbers_of_rows(n_rows, total_rows, first_row, leads)

    @cached_property
    def _graph(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the inputs, the results, and the parts."""
        try:
            inputs, outputs = serialize.loads(self.spec.graph, self._shared)
        except (AttributeError, ImportError) as error:  # of what pickle looks for by its name
            error.add_note(UNKNOWN)
            raise
        n_results = len(self.spec.output_modes) + len(self.spec.updates)
        return list(inputs), list(outputs[:n_results]), list(outputs[n_results:])

    @cached_property
    def _whole(self) -> Callable[..., Any]:
        return self._compiled("whole")

    @cached_property
    def _sliced(self) -> Callable[..., Any]:
        # Without updates it is the same function.
        return self._compiled("sliced") if self.spec.updates else self._whole

    @cached_property
    def _divided(self) -> Callable[..., Any]:
        """Of a slice: results, None for those that are made of parts, then parts."""
        compiled = self._compiled("divided")

        def run(arguments: Sequence[Any]) -> list[Any]:
            values = list(compiled(arguments))
            for position in self.spec.completed:  # in ascending order
                values.insert(position, None)
            return values

        return run

    @cached_property
    def _completed(self) -> Callable[..., Any]:
        """Of parts, in the place of rows: what is made of them."""
        return self._compiled("completed")

    @cached_property
    def _rowless(self) -> Callable[..., Any]:
        return self._compiled("rowless")

    def _written(self, variant: str) -> Written:
        """Return a variant as a function of PyTensor is written."""
        inputs, results, parts = self._graph
        n_outputs = len(self.spec.output_modes)
        match variant:
            case "whole":
                return Written(inputs, results[:n_outputs], self._update_pairs(lambda update: True))
            case "sliced":
                return Written(inputs, results)
            case "divided":
                others = [one for k, one in enumerate(results) if k not in self.spec.completed]
                return Written(inputs, [*others, *parts])
            case "completed":
                given = {part: part.type() for part in parts}
                outputs = substitute([results[k] for k in self.spec.completed], given)
                end = self.spec.n_scattered + self.spec.n_broadcast
                rowless = [*inputs[self.spec.n_scattered : end], *inputs[end + len(self.spec.sliceables) :]]
                return Written([*given.values(), *rowless], outputs)
        pairs = self._update_pairs(lambda update: update.is_rowless)
        return Written(inputs, _draws([expression for _, expression in pairs]), pairs)

    def _shared(self, identity: int) -> Any:
        variable = self._variables[identity]
        self._identities[variable] = identity
        return variable

    def _update_pairs(self, wanted: Callable[[UpdateSpec], bool]) -> list[tuple[Any, Any]]:
        expressions = self._graph[1][len(self.spec.output_modes) :]
        return [
            (self._shared(update.variable), expression)
            for update, expression in zip(self.spec.updates, expressions, strict=True)
            if wanted(update)
        ]

    def _compiled(self, variant: str) -> Callable[..., Any]:
        with self._compiling():
            if self.on_device:
                return Direct(linked(self._rewritten(variant), self._mode))
            return self._compiled_as_asked(self._written(variant))

    def _rewritten(self, variant: str) -> Any:
        """Return the rewritten graph of a variant: the one that this rank was given, or its own."""
        given = self._given.get(variant)
        if given is not None:
            return loads(given, self._shared)
        return rewritten(*self._written(variant), self._mode)

    def _compiled_as_asked(self, written: Written) -> Callable[..., Any]:
        """Compile in the mode that the function was given."""
        new = for_mode([*written.outputs, *(value for _, value in written.updates)], self._mode)
        outputs, values = new[: len(written.outputs)], new[len(written.outputs) :]
        compiled = pytensor.function(
            written.inputs,
            outputs,
            updates=[(variable, value) for (variable, _), value in zip(written.updates, values, strict=True)],
            mode=self._mode,
            name=self.spec.name,
            on_unused_input="ignore",
            trust_input=True,  # the master checked them
        )
        return partial(called_on_host, compiled, self._device.to_host)


@lru_cache(maxsize=8)  # a call of microseconds would take half as long again
def of_one_process(n_rows: int) -> tuple[list[Any], LoneCommunicator]:
    """Return the numbers of rows, and the ranks, where one process has all rows."""
    return numbers_of_rows(n_rows, n_rows, 0, True), LoneCommunicator()


def in_dtype(value: Any, dtype: Any) -> Any:
    """Return an array in a dtype, on the side where it is; as it is where ``dtype`` is None."""
    if isinstance(value, np.ndarray | np.generic):
        return cast(value, dtype)
    return value if dtype is None or value.dtype == dtype else value.astype(dtype)


def _draws(expressions: Sequence[Any]) -> list[Any]:
    """Return the draws of random variables on the way to ``expressions``.

    Unread draws are rewritten away, and then the state would not advance as it does elsewhere.
    """
    nodes = {variable.owner for variable in ancestors(expressions) if variable.owner is not None}
    return [node.default_output() for node in nodes if isinstance(node.op, RandomVariable)]
