"""Run a region: its C function, or where that gives up its nodes in Python.

A region gives up because an argument is no plain array or a demand is not met. It has written to nothing
but where its results are to lie: its nodes run in Python then, which is right or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytensor
from pytensor.graph.fg import FunctionGraph

from synk.compile.compat import as_written
from synk.compile.elementwise.dialect import c_dialect
from synk.compile.emit import emit
from synk.compile.regions.compilation import native_compilation
from synk.compile.regions.writer import RegionWriter
from synk.native.compiler import vector_functions


class RegionFunction:
    """Runs a region."""

    takes_out = True  # see `synk.compile.tables.takes_out`

    def __init__(self, fgraph: FunctionGraph):
        self.fgraph = fgraph
        self.source, self.declarations = written(fgraph)
        self._n_outputs = len(fgraph.outputs)
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
            return emit(self.fgraph, np)


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
