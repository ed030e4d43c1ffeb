"""Rewrite a graph in one process, and link it in many.

    inputs, outputs, updates -> rewritten -> FunctionGraph -> linked -> Linked, which computes
                                          -> dumps -> bytes -> loads, on another rank -> the same graph

Rewriting takes most of the time in which a function is made, and nothing in it depends on the rank. So one
rank does it for all, and all link the very same graph.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytensor
from pytensor import config
from pytensor.compile.maker import FunctionMaker
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.destroyhandler import DestroyHandler
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter

from synk.compile.programs.graphs import serialize
from synk.compile.programs.text.program import Program


class Linked(NamedTuple):
    """A function that PyTensor would compile, reduced to its program and the cells of its values."""

    run: Callable[[Sequence[Any]], list[Any]]  # values of the inputs -> those of outputs, then updates
    program: Program
    cells: list[list[Any]]  # the values of inputs, then of the shared variables that it reads or updates
    updates: dict[int, int]  # position of a new value among the results -> position of its cell
    n_outputs: int  # results before those of updates


def rewritten(
    inputs: Sequence[Variable], outputs: Sequence[Variable], updates: Sequence[tuple[Any, Any]], mode: Mode
) -> FunctionGraph:
    """Return the rewritten graph that ``pytensor.function`` would link in this mode."""
    return pytensor.function(
        list(inputs), list(outputs), updates=list(updates), mode=_Rewriting(mode), on_unused_input="ignore"
    )


class _Maker(FunctionMaker):
    """A maker of functions that returns the rewritten graph instead of a function."""

    def create(self, *_: Any) -> Any:
        return self.fgraph


class _Rewriting(Mode):
    """A mode in which ``pytensor.function`` returns the rewritten graph."""

    def __init__(self, mode: Mode):
        super().__init__(mode.provided_linker, mode.provided_optimizer, mode.optdb)
        self._mode = mode

    @property
    def optimizer(self) -> GraphRewriter:
        return self._mode.optimizer

    @property
    def function_maker(self) -> type[FunctionMaker]:
        return _Maker


def linked(graph: FunctionGraph, mode: Mode) -> Linked:
    """Compile a rewritten graph for this process; its shared variables keep their storage."""
    storage = [getattr(getattr(one, "container", None), "storage", [None]) for one in graph.inputs]
    with config.change_flags(traceback__limit=config.traceback__compile_limit):
        vm, cells, _ = mode.linker.accept(graph).make_thunk(input_storage=storage)
    updates = dict(graph.update_mapping or {})
    n_outputs = len(graph.outputs) - len(updates)
    return Linked(vm.run, vm.jit_fn, [cell.storage for cell in cells], updates, n_outputs)


def dumps(graph: FunctionGraph, share: Callable[[Any], int]) -> bytes:
    """Serialise a rewritten graph; see `serialize.dumps`."""
    return pickle.dumps((graph.update_mapping, serialize.dumps(graph.inputs, graph.outputs, share)))


def loads(payload: bytes, shared: Callable[[int], Any]) -> FunctionGraph:
    """Return a copy of the graph that `dumps` was given; see `serialize.loads`."""
    updates, content = pickle.loads(payload)
    inputs, outputs = serialize.loads(content, shared)
    graph = FunctionGraph(inputs, outputs, clone=False, update_mapping=updates)
    # Sorts nodes that read an array before the node that overwrites it.
    graph.attach_feature(DestroyHandler())
    return graph
