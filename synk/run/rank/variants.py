"""The variants of a function that a rank compiles, each when it is first needed.

    ProgramSpec -> Variants.whole    for a call in one slice: it applies the updates
                   Variants.sliced   for a call in several slices: new values of updates are outputs, so that
                                     each slice sees the variables as they were before the call; also for
                                     slices in which a rank has no rows, but meets the others
                   Variants.rowless  for a call in which a rank has no rows: the updates that need neither
                                     rows nor collectives

If ranks meet only to reduce parts (see `ProgramSpec.parts`), they do so once a call. Then there are two
variants in the place of ``sliced``:

    rows of a slice -> divided -> results, parts -> Sums
    parts of all slices -> completed, in which the ranks meet -> the results that are computed from parts

For the variants that most calls need, one rank rewrites the graphs for all ranks (`Variants.graphs`), and
each rank compiles them (`Variants.compile`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import pytensor
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable

from synk.compile.observe.debug import Debug
from synk.compile.observe.profile import observed_mode
from synk.compile.programs.emit import Observer
from synk.compile.programs.graphs import serialize
from synk.compile.programs.graphs.inside import for_mode
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.rewriting.rewritten import dumps, linked, loads, rewritten
from synk.compile.rewriting.wrong_rewrites import without_wrong
from synk.run.arrays.variables import RankVariables
from synk.run.device import Device
from synk.run.rank.compiled_calls import DirectCall, called_on_host
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.values.by_value import UNKNOWN


class ProgramContext(NamedTuple):
    """The parts of a rank that its programs use."""

    device: Device
    variables: RankVariables
    ranks: Any  # the `Rank`, whose ``communicator`` is always the present one
    compiling: Callable[[], AbstractContextManager[None]]  # returns a context that is entered while compiling


class FunctionArguments(NamedTuple):
    """The arguments of ``pytensor.function`` for one variant."""

    inputs: list[Any]
    outputs: list[Any]
    updates: Sequence[tuple[Any, Any]] = ()


class Variants:
    """The compiled variants of one function on one rank.

    ``observe``, a parameter of `ArrayLinker`, is called around every node.

    Attributes
    ----------
    on_device : bool
        Whether they compute on the rank's device; if not, they do so in the mode that the script gave.
    mode : pytensor.compile.mode.Mode
        The mode in which all of them are compiled.
    """

    def __init__(self, spec: ProgramSpec, context: ProgramContext, observe: Observer | None = None):
        self._spec, self._context = spec, context
        self.on_device = spec.mode in (None, "debug")
        self.mode = self._chosen_mode(observe)
        self._given: dict[str, bytes] = {}  # rewritten graphs, pickled, by variant
        self._identities: dict[Any, int] = {}  # of the shared variables in the graphs

    def compile(self, num_slices: int, graphs: Mapping[str, bytes]) -> None:
        """Compile the variants that most calls in ``num_slices`` slices need, if that has not happened yet.

        ``graphs`` are the rewritten graphs that `graphs` has returned on one rank.
        """
        self._given.update(graphs)
        for variant in self._variants(num_slices):
            getattr(self, variant)  # cached on first access

    def _variants(self, num_slices: int) -> tuple[str, ...]:
        """Return the names of the variants that a call in ``num_slices`` slices needs on a rank with rows."""
        if num_slices == 1 or not self._spec.has_rows:
            return ("whole",)
        if self._spec.parts:
            return ("divided", "completed")
        return ("sliced",) if self._spec.updates else ("whole",)

    def graphs(self, num_slices: int) -> dict[str, bytes]:
        """Return the rewritten graphs, pickled, of the variants that `compile` compiles, for all ranks.

        A rewritten graph that cannot be pickled is left out: each rank rewrites it itself.
        """
        if not self.on_device:
            return {}
        variants = self._variants(num_slices)
        for variant in variants:
            if variant not in self._given:
                with self._context.compiling(), suppress(TypeError):
                    self._given[variant] = dumps(self._rewritten(variant), self._identities.__getitem__)
        return {variant: self._given[variant] for variant in variants if variant in self._given}

    # --- compiled, each on first access ------------------------------------------------------

    @cached_property
    def whole(self) -> Callable[..., Any]:
        return self._compiled("whole")

    @cached_property
    def sliced(self) -> Callable[..., Any]:
        # Without updates it is the same function as `whole`.
        return self._compiled("sliced") if self._spec.updates else self.whole

    @cached_property
    def divided(self) -> Callable[..., Any]:
        """The variant for one slice: returns all results, None for those computed from parts, then parts."""
        compiled = self._compiled("divided")

        def run(arguments: Sequence[Any]) -> list[Any]:
            values = list(compiled(arguments))
            for position in self._spec.completed:  # in ascending order
                values.insert(position, None)
            return values

        return run

    @cached_property
    def completed(self) -> Callable[..., Any]:
        """The variant that takes the parts of all slices, not rows, and returns the results made of them."""
        return self._compiled("completed")

    @cached_property
    def rowless(self) -> Callable[..., Any]:
        return self._compiled("rowless")

    @cached_property
    def part_dtypes(self) -> list[Any]:
        """The dtypes of the parts, which `completed` takes in the place of rows."""
        return [part.type.dtype for part in self._graph[2]]

    # --- made of the graph -------------------------------------------------------------------

    def _chosen_mode(self, observe: Observer | None) -> Any:
        """Return the PyTensor Mode to compile with."""
        if not self.on_device:
            written = self._spec.mode
            return without_wrong(written) if observe is None else observed_mode(written, observe)
        if self._spec.mode == "debug":
            observe = observe or Debug(xp=self._context.device.xp)
        return self._context.device.mode(observe)

    @cached_property
    def _graph(self) -> tuple[list[Any], list[Any], list[Any]]:
        """The inputs, the results and the parts of the function's graph."""
        inputs, outputs = self._loaded(serialize.loads, self._spec.graph)
        n_results = len(self._spec.output_modes) + len(self._spec.updates)
        return list(inputs), list(outputs[:n_results]), list(outputs[n_results:])

    def _function_arguments(self, variant: str) -> FunctionArguments:
        """Return the arguments of ``pytensor.function`` for a variant."""
        inputs, results, parts = self._graph
        n_outputs = len(self._spec.output_modes)
        match variant:
            case "whole":
                return FunctionArguments(inputs, results[:n_outputs], self._update_pairs(lambda update: True))
            case "sliced":
                return FunctionArguments(inputs, results)
            case "divided":
                others = [one for k, one in enumerate(results) if k not in self._spec.completed]
                return FunctionArguments(inputs, [*others, *parts])
            case "completed":
                given = {part: part.type() for part in parts}
                outputs = substitute([results[k] for k in self._spec.completed], given)
                end = self._spec.n_scattered + self._spec.n_broadcast
                rowless = [*inputs[self._spec.n_scattered : end], *inputs[end + len(self._spec.sliceables) :]]
                return FunctionArguments([*given.values(), *rowless], outputs)
        pairs = self._update_pairs(lambda update: update.is_rowless)
        return FunctionArguments(inputs, _draws([expression for _, expression in pairs]), pairs)

    def _loaded(self, load: Callable[..., Any], payload: bytes) -> Any:
        """Unpickle a graph with this rank's shared variables; an unknown name gets a note in the error."""
        try:
            return load(payload, self._shared)
        except (AttributeError, ImportError) as error:  # pickle does not find a name in its module
            error.add_note(UNKNOWN)
            raise

    def _shared(self, identity: int) -> Any:
        """Return this rank's shared variable of an identity, and remember the identity for pickling."""
        variable = self._context.variables[identity]
        self._identities[variable] = identity
        return variable

    def _update_pairs(self, wanted: Callable[[UpdateSpec], bool]) -> list[tuple[Any, Any]]:
        """Return the pairs of shared variable and new value of the ``wanted`` updates."""
        expressions = self._graph[1][len(self._spec.output_modes) :]
        return [
            (self._shared(update.variable), expression)
            for update, expression in zip(self._spec.updates, expressions, strict=True)
            if wanted(update)
        ]

    def _compiled(self, variant: str) -> Callable[..., Any]:
        """Compile a variant, and return the function that calls it."""
        with self._context.compiling():
            if self.on_device:
                return DirectCall(linked(self._rewritten(variant), self.mode))
            return self._compiled_as_asked(self._function_arguments(variant))

    def _rewritten(self, variant: str) -> Any:
        """Return the rewritten graph of a variant: as another rank has sent it, or else rewritten here."""
        given = self._given.get(variant)
        if given is not None:
            return self._loaded(loads, given)
        return rewritten(*self._function_arguments(variant), self.mode)

    def _compiled_as_asked(self, written: FunctionArguments) -> Callable[..., Any]:
        """Compile in the mode that the function was given."""
        new = for_mode([*written.outputs, *(value for _, value in written.updates)], self.mode)
        outputs, values = new[: len(written.outputs)], new[len(written.outputs) :]
        compiled = pytensor.function(
            written.inputs,
            outputs,
            updates=[(variable, value) for (variable, _), value in zip(written.updates, values, strict=True)],
            mode=self.mode,
            name=self._spec.name,
            on_unused_input="ignore",
            trust_input=True,  # the master checked them
        )
        return partial(called_on_host, compiled, self._context.device.to_host)


def _draws(expressions: Sequence[Any]) -> list[Any]:
    """Return the draws of all random variables among the ancestors of ``expressions``, to be outputs, too.

    Draws that nothing reads would be removed by rewrites; then the random state would not advance by as much
    as on other ranks.
    """
    nodes = {variable.owner for variable in ancestors(expressions) if variable.owner is not None}
    return [node.default_output() for node in nodes if isinstance(node.op, RandomVariable)]
