"""Several functions and collectives as one command on every rank.

sequence(gradient, partial(all_reduce, g), update)(x, y) -> one message, one reply per rank
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import Effect
from synk.run.functions.function import Function
from synk.run.functions.prepared import PreparedStep, ReuseConditions
from synk.run.functions.selections import CallOptions
from synk.run.functions.step_function import StepFunction


class Item(Protocol):
    """A collective with its arguments; `synk.run.collectives.collective.Collective` implements it."""

    has_result: bool
    name: str
    variables: Sequence[Any]

    def prepare(self, run: Owner) -> PreparedStep:
        """Return the step of the collective."""

    def effect(self, run: Owner) -> Effect | None:
        """Return the effect of the step on shared variables."""


class SequenceFunction(Function):
    """Functions and collectives in order, made by `synk.sequence`.

    Its inputs are those of its functions, each once, in order of first use. Its outputs are those of its
    items, in order: outputs of functions, and results of collectives. Raises TypeError for an item that is
    neither a function nor a collective, and for a collective that must be called by itself.
    """

    def __init__(self, owner: Owner, items: Sequence[Any], name: str | None):
        if not items:
            raise TypeError("sequence() needs functions and collectives, got none")
        self._items: list[StepFunction | Item] = []
        with owner.turn("sequence"):
            for item in map(_as_item, items):
                if not isinstance(item, StepFunction):
                    item.prepare(owner)  # raises errors of its arguments here, not at the first call
                self._items.append(item)
        self._functions = [item for item in self._items if isinstance(item, StepFunction)]
        for function in self._functions:
            function.check_open()  # its run may have been closed; from now on both belong to the same run
            function.check_compared()
        for item in self._functions:
            others = [other for other in self._items if other is not item]
            item.join({variable for other in others for variable in _changed(other)})
        inputs = dict.fromkeys(variable for function in self._functions for variable in function.inputs)
        kinds = [function.returns for function in self._functions if function.returns != "none"]
        super().__init__(
            owner,
            name or " + ".join(function.name for function in self._functions),
            list(inputs),
            returns=kinds[0] if len(kinds) == 1 else "list" if kinds else "none",
        )

    @property
    def output_modes(self) -> list[str | None]:
        return [mode for function in self._functions for mode in function.output_modes]

    @property
    def update_modes(self) -> list[str | None]:
        return [mode for function in self._functions for mode in function.update_modes]

    @property
    def scattered(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(one for function in self._functions for one in function.scattered))

    @property
    def outputs(self) -> tuple[Any, ...]:
        found: list[Any] = []
        for item in self._items:
            found += item.outputs if isinstance(item, StepFunction) else [None] * item.has_result
        return tuple(found)

    def as_written(self, values: list[Any]) -> Any:
        # Without outputs of functions, there may still be results of collectives.
        return values if self.returns == "none" and values else super().as_written(values)

    def gathers(self) -> list[str]:
        return [line for function in self._functions for line in function.gathers()]

    def explanation(self) -> list[str]:
        lines = []
        for number, item in enumerate(self._items, start=1):
            if isinstance(item, StepFunction):
                first, *others = item.explanation()
                lines += [f"{number}. {first}", *others]
            else:
                names = ", ".join(map(describe, item.variables))
                lines.append(f"{number}. collective {item.name} of {names}")
        return lines

    def graph_text(self) -> list[str]:
        lines = []
        for item in self._items:
            lines += item.graph_text() if isinstance(item, StepFunction) else [item.name]
        return lines

    def can_batch_s(self) -> bool:
        return any(function.can_batch_s() for function in self._functions)

    def effects(self) -> list[Effect | None]:
        found: list[Effect | None] = []
        for item in self._items:
            found += item.effects() if isinstance(item, StepFunction) else [item.effect(self._owner)]
        return found

    def prepare(self, values: Sequence[Any], options: CallOptions) -> Iterator[list[PreparedStep]]:
        given = dict(zip(self.inputs, values, strict=True))
        prepared: list[PreparedStep] = []
        for item in self._items:
            if not isinstance(item, StepFunction):
                prepared.append(item.prepare(self._owner))
                continue
            reshaped = {variable for entry in prepared for variable in entry.reshapes}
            if not reshaped.isdisjoint(item.sliced_variables()):
                # Its rows are known only after the steps before have run, so a further command is needed.
                yield prepared
                prepared = []
            inputs = [given[variable] for variable in item.inputs]
            step = item.prepare_step(inputs, _options_for(options, item))
            prepared.append(step._replace(reuse=self._with_sequence_positions(item, step.reuse)))
        yield prepared

    def _with_sequence_positions(
        self, function: StepFunction, reuse: ReuseConditions | None
    ) -> ReuseConditions | None:
        """Return the conditions of a function's step, with positions among the inputs of the sequence."""
        if reuse is None:
            return None
        places = [self.inputs.index(variable) for variable in function.inputs]
        return reuse._replace(inputs=[one._replace(position=places[one.position]) for one in reuse.inputs])

    def check_alone(self, made: set[Any]) -> None:
        for function in self._functions:
            function.check_alone(made)

    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.inputs, arrays, strict=True))
        return [
            value
            for function in self._functions
            for value in function.run_alone([given[variable] for variable in function.inputs])
        ]


def _as_item(item: Any) -> StepFunction | Item:
    """Return a function unchanged, or the collective that a partial or a tuple stands for."""
    if isinstance(item, StepFunction):
        return item
    if isinstance(item, SequenceFunction):
        raise TypeError(
            f"{item.name!r} is a sequence itself, as training steps are, and cannot stand in another; "
            "pass its functions and collectives"
        )
    if isinstance(item, tuple) and item and callable(item[0]):
        item = partial(item[0], *item[1:])
    collective = getattr(item.func, "collective", None) if isinstance(item, partial) else None
    if collective is None:
        raise TypeError(
            "sequence() takes functions and collectives as functools.partial(synk.all_reduce, variable) "
            f"or (synk.all_reduce, variable), got {item!r}"
        )
    return collective.of(item.args, item.keywords)


def _changed(item: StepFunction | Item) -> Sequence[Any]:
    """Return the shared variables that an item changes; a collective may also store them elsewhere."""
    return item.updated_variables() if isinstance(item, StepFunction) else item.variables


def _options_for(options: CallOptions, function: StepFunction) -> CallOptions:
    """Return the options of a sequence's call that apply to one of its functions."""
    return CallOptions(
        batch=options.batch if function.can_batch() else None,
        batch_s=options.batch_s if function.can_batch_s() else None,
        num_slices=options.num_slices if function.can_slice() else 1,
        next_batch=options.next_batch if function.can_batch() else None,
    )
