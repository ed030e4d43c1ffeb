"""Functions of one graph: which rows every rank reads, and how the results combine.

Definition -> GraphFunction.prepare (pure checks, then staging) -> Call -> combine
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from synk.arrays.data import Data
from synk.arrays.owner import Owner
from synk.arrays.variables import describe
from synk.functions.calls import (
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
from synk.functions.function import Function
from synk.functions.prepared import KnownInput, Lasting, PreparedStep
from synk.functions.spec import to_spec
from synk.functions.symbolic import Definition
from synk.values import messages
from synk.values.reduction import Output, combine
from synk.values.rows import Rows, check_num_slices, same_rows, split


class Announced(NamedTuple):
    """Rows that the ranks gather ahead of the call that reads them."""

    token: int
    state: list[tuple[messages.ArrayRef, int]]  # of each Data, and how often it was handed out
    rows: Rows


class Spans(NamedTuple):
    """A `Selection` as a message says it."""

    batch: messages.Span | None
    shares: tuple[messages.Span, ...] | None
    following: Any  # Span, or None


class GraphFunction(Function):
    """A function of one PyTensor graph, made by `synk.function`."""

    def __init__(self, owner: Owner, number: int, definition: Definition):
        super().__init__(owner, definition.name, definition.all_inputs)
        self._number = number
        self._definition = definition  # keeps the shared variables alive
        self._spec: Any = None
        self._reshapes: tuple[int, ...] = ()
        self._finish: Any = None  # what makes the outputs of the results of all ranks
        self._announced: Announced | None = None
        self._tokens = count(1)
        self._finalizer = weakref.finalize(self, owner.forget, number)
        self._finalizer.atexit = False

    @property
    def output_modes(self) -> list[str | None]:
        return list(self._definition.output_modes)

    @property
    def update_modes(self) -> list[str | None]:
        return [update.mode for update in self._definition.updates]

    @property
    def returns(self) -> str:
        return self._definition.returns

    def can_batch(self) -> bool:
        return bool(self._definition.inputs)

    def can_batch_s(self) -> bool:
        return bool(self._definition.sliceables)

    def check_open(self) -> None:
        """Raise SynkStateError if the function's run was closed."""
        self._owner.check_open(f"function {self.name!r}")

    def ready(self) -> int:
        """Give the function to all ranks if they do not have it yet; return its number."""
        self.check_open()
        if self._spec is None:
            spec = to_spec(self._definition, self._owner.shared.identify_all)
            self._owner.install(messages.Build(self._number, spec))
            self._spec = spec
            self._reshapes = tuple(update.variable for update in spec.updates)
            if self._definition.outputs:
                self._finish = partial(combine, [*map(self._output, count(), self._definition.outputs)])
        return self._number

    def _output(self, position: int, output: Any) -> Output:
        what = f"output {position} ({describe(output)}) of {self.name!r}"
        return Output(self._spec.output_modes[position], getattr(output.type, "dtype", None), what)

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        return self._owner.run_alone(self.ready(), arrays)

    def prepare(self, values: Sequence[Any], options: CallOptions) -> Iterator[list[PreparedStep]]:
        yield [self.prepare_step(values, options)]

    def sliced_variables(self) -> tuple[int, ...]:
        """Return the sliceable shared variables, by identity."""
        self.ready()
        return self._spec.sliceables

    def prepare_step(self, values: Sequence[Any], options: CallOptions) -> PreparedStep:
        """Check a call and decide on its one step."""
        if self._spec is None:
            self.ready()
        entries = [self._entry(variable, value) for variable, value in zip(self.inputs, values, strict=True)]
        scattered = entries[: len(self._definition.inputs)]
        length = common_length(scattered)
        selected = self._select(scattered, options, length)
        inputs, paired = self._stage(entries, selected.batch)
        gathered = self._gathered(scattered, selected) if self._announced or selected.following else 0
        spans, indices = self._stage_indices(selected, needed=not all(paired))
        step = messages.Call(
            function=self._number,
            inputs=inputs,
            batch=spans.batch,
            minibatch=paired,
            shares=spans.shares,
            indices=indices,
            num_slices=check_num_slices(options.num_slices),
            gathered=gathered,
            ahead=self._announced and messages.Ahead(self._announced.token, spans.following),
        )
        return PreparedStep(step, self._finish, self._reshapes, self._lasting(entries, step, length))

    def _entry(self, variable: Any, value: Any) -> Any:
        """Return an input as it is if it is Data, else as an array of the variable's type."""
        if not isinstance(value, Data):
            return as_input(variable, value)
        check_data(variable, value)
        return value

    def _lasting(self, entries: Sequence[Any], step: messages.Call, length: int | None) -> Lasting | None:
        """Return the conditions under which the next call is the same step."""
        n_scattered = len(self._definition.inputs)
        if self._definition.sliceables or step.gathered or (n_scattered and length is None):
            return None  # lengths, and what was announced, are looked at again
        inputs = [
            KnownInput(position, weakref.ref(entry) if isinstance(entry, Data) else None, ref)
            for position, (entry, ref) in enumerate(zip(entries, step.inputs, strict=True))
        ]
        return Lasting(inputs, length, step.indices)

    def _select(self, scattered: Sequence[Any], options: CallOptions, length: int | None) -> Selection:
        batch, shares, following = None, None, None
        if scattered:
            batch = select_batch(self._definition.inputs, scattered, options.batch, length)
            if options.next_batch is not None:
                following = select_following(
                    self._definition.inputs, scattered, options.next_batch, not self._owner.on_gpus
                )
        sliceables = self._definition.sliceables
        if sliceables:
            shares = select_shares(sliceables, self._owner.lengths.of(self._spec.sliceables), options.batch_s)
            sliced = tuple(len(rows) for rows in shares)
            if batch is not None:
                self._check_counts(batch, sliced)
        return Selection(batch, shares, following)

    def _check_counts(self, batch: Rows, sliced: tuple[int, ...]) -> None:
        counts = tuple(stop - start for start, stop in split(len(batch), self._owner.n_ranks))
        if sliced != counts:
            raise ValueError(
                f"scattered inputs give the ranks {counts} rows, sliceable variables {sliced}; "
                "select equally many with batch and batch_s"
            )

    def _gathered(self, scattered: Sequence[Any], selected: Selection) -> int:
        """Return the token of this call's rows if they were announced; announce those of the next."""
        before, self._announced = self._announced, None
        if before is None and selected.following is None:
            return 0
        state = [(entry.ref(), entry.changes) for entry in scattered if is_gathered(entry)]
        if selected.following is not None:
            self._announced = Announced(next(self._tokens), state, selected.following)
        if before is None or before.state != state or selected.batch is None:
            return 0
        return before.token if same_rows(before.rows, selected.batch) else 0

    # --- staging -----------------------------------------------------------------------------

    def _stage(
        self, entries: Sequence[Any], rows: Rows | None
    ) -> tuple[tuple[messages.ArrayRef, ...], tuple[bool, ...]]:
        """Put plain arrays, or just their selected rows, into shared memory."""
        n_scattered = len(self._definition.inputs)
        staged, paired = [], []
        for position, entry in enumerate(entries):
            is_data = isinstance(entry, Data)
            if position < n_scattered:
                paired.append(not is_data or entry.minibatch)
            if is_data:
                staged.append(entry.ref())
                continue
            assert rows is not None or position >= n_scattered
            chosen = rows.of(entry) if rows is not None and position < n_scattered else entry
            staged.append(self._owner.staging.put((self._number, position), chosen))
        return tuple(staged), tuple(paired)

    def _stage_indices(self, selected: Selection, needed: bool) -> tuple[Spans, messages.ArrayRef | None]:
        indices = IndexList()
        batch, shares, following = None, None, None
        if selected.batch is not None:
            # Arrays that were staged hold the selected rows only, so nobody needs the indices.
            batch = indices.span(selected.batch if needed else Rows(0, len(selected.batch)))
        if selected.shares is not None:
            shares = tuple(indices.span(rows) for rows in selected.shares)
        if selected.following is not None:
            following = indices.span(selected.following)
        return Spans(batch, shares, following), indices.stage(self._owner.staging, (self._number, "indices"))
