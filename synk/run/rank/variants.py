"""The variants of a function that a rank compiles, each when it is first needed.

    ProgramSpec -> Variants.whole    for one slice, with updates in place
                   Variants.sliced   for several, with updates as outputs, so that each slice sees the values
                                     from before; for slices in which a rank without rows only meets others
                   Variants.rowless  for a rank without rows: the updates that need neither rows nor ranks

Where ranks meet only to combine parts, they do so once a call. In the place of ``sliced`` there are two:

    rows of a slice -> divided -> results, parts -> Sums
    parts of all slices -> completed, in which the ranks meet -> what is made of them

One rank rewrites for all what most calls need: `Variants.graphs` there, `Variants.compile` on each rank.
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
from synk.run.rank.compiled_calls import Direct, called_on_host
from synk.run.rank.program_spec import ProgramSpec, UpdateSpec
from synk.values.by_value import UNKNOWN


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


class Variants:
    """The variants of one function on one rank; with ``observe``, as of `ArrayLinker`, around every node.

    Attributes
    ----------
    on_device : bool
        Whether they compute on the rank's device, not in a mode that the function was given.
    mode : pytensor.compile.mode.Mode
        The mode in which all of them are compiled.
    """

    def __init__(self, spec: ProgramSpec, context: ProgramContext, observe: Observer | None = None):
        self._spec, self._context = spec, context
        self.on_device = spec.mode in (None, "debug")
        self.mode = self._chosen_mode(observe)
        self._given: dict[str, bytes] = {}  # rewritten graphs, by variant
        self._identities: dict[Any, int] = {}  # of the shared variables in its graphs

    def compile(self, num_slices: int, graphs: Mapping[str, bytes]) -> None:
        """Compile what most calls in so many slices need, if that has not happened yet.

        ``graphs`` are what `graphs` has returned on one rank: these need no rewriting here.
        """
        self._given.update(graphs)
        for variant in self._variants(num_slices):
            getattr(self, variant)  # cached on first access

    def _variants(self, num_slices: int) -> tuple[str, ...]:
        if num_slices == 1 or not self._spec.has_rows:
            return ("whole",)
        if self._spec.parts:
            return ("divided", "completed")
        return ("sliced",) if self._spec.updates else ("whole",)

    def graphs(self, num_slices: int) -> dict[str, bytes]:
        """Return the rewritten graphs of what `compile` compiles, by variant, for all ranks.

        A graph may be impossible to pickle once it is rewritten. It is left out, and each rank rewrites it.
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
        # Without updates it is the same function.
        return self._compiled("sliced") if self._spec.updates else self.whole

    @cached_property
    def divided(self) -> Callable[..., Any]:
        """Of a slice: results, None for those that are made of parts, then parts."""
        compiled = self._compiled("divided")

        def run(arguments: Sequence[Any]) -> list[Any]:
            values = list(compiled(arguments))
            for position in self._spec.completed:  # in ascending order
                values.insert(position, None)
            return values

        return run

    @cached_property
    def completed(self) -> Callable[..., Any]:
        """Of parts, in the place of rows: what is made of them."""
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
        """Return the inputs, the results, and the parts."""
        inputs, outputs = self._loaded(serialize.loads, self._spec.graph)
        n_results = len(self._spec.output_modes) + len(self._spec.updates)
        return list(inputs), list(outputs[:n_results]), list(outputs[n_results:])

    def _written(self, variant: str) -> Written:
        """Return a variant as a function of PyTensor is written."""
        inputs, results, parts = self._graph
        n_outputs = len(self._spec.output_modes)
        match variant:
            case "whole":
                return Written(inputs, results[:n_outputs], self._update_pairs(lambda update: True))
            case "sliced":
                return Written(inputs, results)
            case "divided":
                others = [one for k, one in enumerate(results) if k not in self._spec.completed]
                return Written(inputs, [*others, *parts])
            case "completed":
                given = {part: part.type() for part in parts}
                outputs = substitute([results[k] for k in self._spec.completed], given)
                end = self._spec.n_scattered + self._spec.n_broadcast
                rowless = [*inputs[self._spec.n_scattered : end], *inputs[end + len(self._spec.sliceables) :]]
                return Written([*given.values(), *rowless], outputs)
        pairs = self._update_pairs(lambda update: update.is_rowless)
        return Written(inputs, _draws([expression for _, expression in pairs]), pairs)

    def _loaded(self, load: Callable[..., Any], payload: bytes) -> Any:
        try:
            return load(payload, self._shared)
        except (AttributeError, ImportError) as error:  # of what pickle looks for by its name
            error.add_note(UNKNOWN)
            raise

    def _shared(self, identity: int) -> Any:
        variable = self._context.variables[identity]
        self._identities[variable] = identity
        return variable

    def _update_pairs(self, wanted: Callable[[UpdateSpec], bool]) -> list[tuple[Any, Any]]:
        expressions = self._graph[1][len(self._spec.output_modes) :]
        return [
            (self._shared(update.variable), expression)
            for update, expression in zip(self._spec.updates, expressions, strict=True)
            if wanted(update)
        ]

    def _compiled(self, variant: str) -> Callable[..., Any]:
        with self._context.compiling():
            if self.on_device:
                return Direct(linked(self._rewritten(variant), self.mode))
            return self._compiled_as_asked(self._written(variant))

    def _rewritten(self, variant: str) -> Any:
        """Return the rewritten graph of a variant: the one that this rank was given, or its own."""
        given = self._given.get(variant)
        if given is not None:
            return self._loaded(loads, given)
        return rewritten(*self._written(variant), self.mode)

    def _compiled_as_asked(self, written: Written) -> Callable[..., Any]:
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
    """Return the draws of random variables on the way to ``expressions``.

    Unread draws are rewritten away, and then the state would not advance as it does elsewhere.
    """
    nodes = {variable.owner for variable in ancestors(expressions) if variable.owner is not None}
    return [node.default_output() for node in nodes if isinstance(node.op, RandomVariable)]
