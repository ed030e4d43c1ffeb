"""Regions: nodes that run as one C function, which stands in the graph as one node.

    Region(graph of nodes) -> array entry -> RegionFunction: compiled when first called, with all that wait

A region that gives up, because an argument is no plain array or a demand is not met, has written to
nothing but where its results are to lie: its nodes run in Python then, which is right or says what is wrong.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import Elemwise

from synk.compile.compat import as_written
from synk.compile.elementwise.dialect import c_dialect
from synk.compile.emit import emit
from synk.compile.programs.program import OfNodes
from synk.compile.regions.writer import RegionWriter, source_file
from synk.compile.tables import array_funcify
from synk.native.compilation import CompileError
from synk.native.compiler import Compiler, find_compiler, vector_functions
from synk.native.libraries import Libraries, SourceText, method_of
from synk.native.store import Store, name_of


class Region(OfNodes, Op):
    """Nodes that run as one.

    Parameters
    ----------
    fgraph : FunctionGraph
        The nodes, none of which works in place.
    """

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph

    @property
    def elementwise(self) -> bool:
        """Whether elements of its results are made of those in the same place, which they may take."""
        nodes = self.fgraph.apply_nodes
        return len(nodes) == 1 and all(isinstance(node.op, Elemwise) for node in nodes)

    def make_node(self, *inputs):
        return Apply(self, list(inputs), [variable.type() for variable in self.fgraph.outputs])

    def perform(self, node, inputs, output_storage):
        """Run the nodes as they say themselves."""
        values = dict(zip(self.fgraph.inputs, inputs, strict=True))
        for inner in self.fgraph.toposort():
            given = [values[v] if v in values else v.data for v in inner.inputs]  # noqa: SIM401
            cells: list[list[Any]] = [[None] for _ in inner.outputs]
            inner.op.perform(inner, given, cells)
            values.update(zip(inner.outputs, (cell[0] for cell in cells), strict=True))
        for cell, variable in zip(output_storage, self.fgraph.outputs, strict=True):
            cell[0] = values[variable]

    def __str__(self) -> str:
        ops = [str(node.op) for node in self.fgraph.toposort()]
        if len(ops) == 1:
            return ops[0]
        return f"Region{{{len(ops)} nodes: {', '.join(ops[:3])}{', ...' if len(ops) > 3 else ''}}}"


@array_funcify.register(Region)
def region(op, node, xp):
    """The C function, which takes what its results are written to as well."""
    return RegionFunction(op)


class RegionFunction:
    """Runs a region."""

    takes_out = True  # see `synk.compile.tables.takes_out`

    def __init__(self, op: Region):
        self.op = op
        self.source, self.declarations = written(op.fgraph)
        self._n_outputs = len(op.fgraph.outputs)
        self.function: Callable[..., Any] = self._first_call
        compilation = native_compilation()
        assert compilation is not None
        self._compilation = compilation
        compilation.add(self)

    def __call__(self, *inputs, out=None):
        if out is None:
            results = self.function(*inputs)
        elif self._n_outputs == 1:
            results = self.function(*inputs, out[0] if isinstance(out, tuple) else out)
        else:
            results = self.function(*inputs, *out)
        return self._in_python(inputs, out) if results is None else results

    def _first_call(self, *arguments):
        self._compilation.compile(self)
        return self.function(*arguments)

    def _in_python(self, inputs, out):
        """Run the nodes one by one: on arrays that are not plain, or to say what is wrong."""
        results = self.program(*map(plain, inputs))
        if out is not None:
            places = out if isinstance(out, tuple) else (out,)
            results = tuple([written_to(place, r) for place, r in zip(places, results, strict=True)])
        return results[0] if self._n_outputs == 1 else tuple(results)

    @cached_property
    def program(self) -> Any:
        """The nodes as a Python program."""
        # What is made in a call keeps the lines of what it is made of, not the call's.
        limit = pytensor.config.traceback__compile_limit
        with as_written(), pytensor.config.change_flags(traceback__limit=limit):
            return emit(self.op.fgraph, np)


def plain(value: Any) -> Any:
    """Return an array as NumPy's functions like it, and a scalar as it is."""
    return value if isinstance(value, np.generic) else np.require(value, requirements="A").view(np.ndarray)


def written_to(place: Any, value: Any) -> Any:
    """Return ``place`` with a value in it, or the value if there is no place."""
    if place is None:
        return value
    place[...] = value
    return place


def written(fgraph: FunctionGraph) -> tuple[str, set[str]]:
    """Return the C text of a region, and its declarations; NoText if it has none."""
    writer = RegionWriter(fgraph.toposort(), fgraph.inputs, fgraph.outputs, dialect())
    return writer.write(), writer.declarations


@cache
def dialect():
    """Return C with the functions that this machine has."""
    return c_dialect(vector_functions())


class NativeCompilation:
    """The regions of one process: those that wait are compiled together."""

    def __init__(self, compiler: Compiler, store: Store):
        self.libraries = Libraries(compiler, store)
        self._environment = "\n".join(
            [compiler.fingerprint, *sorted(vector_functions()), source_file({}, set())]
        )
        self._waiting: list[weakref.ref[RegionFunction]] = []
        self._known: dict[str, Callable[..., Any]] = {}
        self._failed = False  # which is said once
        self._lock = threading.Lock()

    def add(self, function: RegionFunction) -> None:
        """Let a region wait."""
        self._waiting.append(weakref.ref(function))

    def compile(self, wanted: RegionFunction) -> None:
        """Give a region, and all that wait, their functions: from the store, or compiled at the same time."""
        with self._lock:
            self._compile(wanted)

    def _compile(self, wanted: RegionFunction) -> None:
        # It may not wait any more: an interrupt may have ended what was to compile it.
        everyone = [wanted, *(f for ref in self._waiting if (f := ref()) is not None)]
        waiting = {self._name(f): f for f in everyone}
        self._waiting.clear()
        missing = {name: f for name, f in waiting.items() if not self._find(name)}
        texts = [
            SourceText(source_file({name: f.source}, f.declarations), (name,)) for name, f in missing.items()
        ]
        for name, library in zip(missing, self.libraries.make(texts) if texts else [], strict=True):
            if isinstance(library, CompileError):
                self._known[name] = gives_up
                self._say(library)
            else:
                self._known[name] = method_of(library, name)
        for function in everyone:
            function.function = self._known[self._name(function)]

    def _name(self, function: RegionFunction) -> str:
        return name_of(self._environment, function.source, *sorted(function.declarations))

    def _find(self, name: str) -> bool:
        if name not in self._known:
            library = self.libraries.find(name)
            if library is None:
                return False
            try:
                self._known[name] = method_of(library, name)
            except (AttributeError, ValueError):
                return False
        return True

    def _say(self, error: CompileError) -> None:
        if not self._failed:
            self._failed = True
            warnings.warn(f"{error}\nGraphs run in Python; set CC to a C compiler that works", stacklevel=4)


def gives_up(*arguments: Any) -> None:
    """Stand for a function that did not compile."""


@cache
def native_compilation() -> NativeCompilation | None:
    """Return what compiles in this process, or None if there is no compiler."""
    compiler = find_compiler()
    return None if compiler is None else NativeCompilation(compiler, Store())
