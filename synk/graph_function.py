"""Functions of one graph: which rows every rank reads, and how the results combine.

    Definition -> GraphFunction.prepare (pure checks, then staging) -> Call -> combine

Imports floor 4 and below.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from synk import messages
from synk.calls import CallOptions, IndexList, Selection, as_input, check_data, select_batch, select_shares
from synk.data import Data
from synk.function import Function, Prepared
from synk.owner import Owner
from synk.plan import Rows, check_num_slices, split
from synk.reduction import Partial, combine
from synk.spec import to_spec
from synk.symbolic import Definition


class GraphFunction(Function):
    """A function of one PyTensor graph, made by `synk.function`."""

    def __init__(self, owner: Owner, number: int, definition: Definition):
        super().__init__(owner, definition.name, definition.all_inputs)
        self._number = number
        self._definition = definition  # keeps the shared variables alive
        self._spec: Any = None
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
        """Return whether there are scattered inputs."""
        return bool(self._definition.inputs)

    def can_batch_s(self) -> bool:
        """Return whether there are sliceable shared variables."""
        return bool(self._definition.sliceables)

    def ready(self) -> int:
        """Give the function to all ranks if they do not have it yet; return its number."""
        self._owner.check_open(f"function {self.name!r}")
        if self._spec is None:
            spec = to_spec(self._definition, self._owner.shared.identify)
            self._owner.install(messages.Build(self._number, spec))
            self._spec = spec
        return self._number

    def check(self, options: CallOptions) -> None:
        if options.batch is not None and not self.can_batch():
            raise TypeError(f"batch selects rows of scattered inputs; {self.name!r} has none")
        if options.batch_s is not None and not self.can_batch_s():
            raise TypeError(f"batch_s selects rows of sliceable_shareds; {self.name!r} has none")
        if check_num_slices(options.num_slices) > 1 and not (self.can_batch() or self.can_batch_s()):
            raise ValueError(f"num_slices={options.num_slices}, but {self.name!r} has nothing to slice")

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        return self._owner.run_alone(self.ready(), arrays)

    def prepare(self, values: Sequence[Any], options: CallOptions) -> Iterator[list[Prepared]]:
        yield [self.prepare_step(values, options)]

    def sliced_variables(self) -> tuple[int, ...]:
        """Return the sliceable shared variables, by identity."""
        self.ready()
        return self._spec.sliceables

    def prepare_step(self, values: Sequence[Any], options: CallOptions) -> Prepared:
        """Check a call and decide on its one step."""
        number = self.ready()
        num_slices = check_num_slices(options.num_slices)
        entries = [self._entry(variable, value) for variable, value in zip(self.inputs, values, strict=True)]
        n_scattered = len(self._definition.inputs)
        selected = self._select(entries[:n_scattered], options)
        refs, paired = self._stage(entries[:n_scattered], selected.batch)
        whole = [self._ref(n_scattered + at, entry) for at, entry in enumerate(entries[n_scattered:])]
        batch, shares, indices = self._stage_indices(selected, needed=not all(paired))
        step = messages.Call(
            function=number,
            inputs=(*refs, *whole),
            batch=batch,
            minibatch=tuple(paired),
            shares=shares,
            indices=indices,
            total_rows=sum(selected.counts),
            num_slices=num_slices,
        )
        return Prepared(step, self._combine, tuple(update.variable for update in self._spec.updates))

    @staticmethod
    def _entry(variable: Any, value: Any) -> Any:
        """Return an input as a Data, or as an array of the variable's type."""
        if not isinstance(value, Data):
            return as_input(variable, value)
        check_data(variable, value)
        return value

    def _select(self, scattered: Sequence[Any], options: CallOptions) -> Selection:
        batch, shares = None, None
        counts: tuple[int, ...] = ()
        if scattered:
            batch = select_batch(self._definition.inputs, scattered, options.batch)
            counts = tuple(stop - start for start, stop in split(len(batch), self._owner.n_ranks))
        sliceables = self._definition.sliceables
        if sliceables:
            shares = select_shares(sliceables, self._owner.lengths(self._spec.sliceables), options.batch_s)
            sliced = tuple(len(rows) for rows in shares)
            if scattered and sliced != counts:
                raise ValueError(
                    f"scattered inputs give the ranks {counts} rows, sliceable variables {sliced}; "
                    "select equally many with batch and batch_s"
                )
            counts = sliced
        return Selection(batch, shares, counts)

    # --- staging -----------------------------------------------------------------------------

    def _stage(
        self, scattered: Sequence[Any], rows: Rows | None
    ) -> tuple[list[messages.ArrayRef], list[bool]]:
        """Put plain arrays, or just their selected rows, into shared memory."""
        refs, paired = [], []
        for position, entry in enumerate(scattered):
            assert rows is not None
            plain = not isinstance(entry, Data)
            refs.append(self._ref(position, rows.of(entry) if plain else entry))
            paired.append(plain or entry.minibatch)
        return refs, paired

    def _ref(self, position: int, entry: Any) -> messages.ArrayRef:
        if isinstance(entry, Data):
            return entry.ref()
        return self._owner.staging.put((self._number, position), entry)

    def _stage_indices(
        self, selected: Selection, needed: bool
    ) -> tuple[messages.Span | None, tuple[messages.Span, ...] | None, messages.ArrayRef | None]:
        indices = IndexList()
        batch = None
        if selected.batch is not None:
            # Arrays that were staged hold the selected rows only, so nobody needs the indices.
            batch = indices.span(selected.batch if needed else Rows(0, len(selected.batch)))
        shares = None if selected.shares is None else tuple(indices.span(rows) for rows in selected.shares)
        return batch, shares, indices.stage(self._owner.staging, (self._number, "indices"))

    # --- results -----------------------------------------------------------------------------

    def _combine(self, results: list[list[Partial | None]]) -> list[Any]:
        return [
            combine(mode, of_ranks, getattr(output.type, "dtype", None))
            for mode, output, *of_ranks in zip(
                self._spec.output_modes, self._definition.outputs, *results, strict=True
            )
        ]
