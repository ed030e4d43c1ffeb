"""Run a region: its C function, or where that gives up its nodes in Python.

A region gives up because an argument is no plain array or a demand is not met. It has written nothing that
anybody reads: one that may give up in the middle, at a position out of range, say, takes no arrays for its
results. Once more with plain arrays, then its nodes run in Python, which is right or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.graph.fg import FunctionGraph

from synk.compile.native.bit_generators import copy_generator
from synk.compile.regions.native_function import native_compilation
from synk.compile.regions.region_writer import RegionText


class RegionFunction:
    """Runs a region.

    Parameters
    ----------
    fgraph : FunctionGraph
        The nodes.
    text : RegionText
        The same in C.
    in_python : callable
        Returns the function that runs them in Python, which returns a sequence of results.
    """

    def __init__(
        self, fgraph: FunctionGraph, text: RegionText, in_python: Callable[[], Callable[..., Sequence[Any]]]
    ):
        self._make_program = in_python
        self._dtypes = [getattr(variable.type, "dtype", None) for variable in fgraph.inputs]
        self._generators = [k for k, dtype in enumerate(self._dtypes) if dtype is None]
        self._n_outputs = len(fgraph.outputs)
        compilation = native_compilation()
        assert compilation is not None
        self.native = compilation.function(text.source, text.declarations)

    @property
    def is_pure(self) -> bool:
        """Tell whether it only reads its arguments: generators draw."""
        return not self._generators

    def __call__(self, *inputs, out=None):
        call = self._draw if self._generators else self.native.call
        if out is None:
            results = call(*inputs)
            return self._otherwise(inputs) if results is None else results
        places = out if isinstance(out, tuple) else (out,)
        results = call(*inputs, *places)
        if results is not None:
            return results
        results = self._otherwise(inputs)
        if self._n_outputs == 1:
            return written_to(places[0], results)
        return tuple(map(written_to, places, results))

    def _draw(self, *given):
        """Call the C function with copies of generators, so that none has drawn if it gives up."""
        copied = list(given)
        for k in self._generators:
            copied[k] = copy_generator(given[k])
        return self.native.call(*copied)

    def _otherwise(self, inputs):
        """Run with plain arrays, or else the nodes one by one: to be right, or to say what is wrong."""
        given = [plain(value, dtype) for value, dtype in zip(inputs, self._dtypes, strict=True)]
        results = (self._draw if self._generators else self.native.call)(*given)
        if results is not None:
            return results
        results = self.program(*given)
        return results[0] if self._n_outputs == 1 else tuple(results)

    @cached_property
    def program(self) -> Callable[..., Sequence[Any]]:
        """The nodes as a Python program."""
        return self._make_program()


def plain(value: Any, dtype: str | None) -> Any:
    """Return an array as C and NumPy's functions like it, and a scalar or a generator as it is."""
    if dtype is None or isinstance(value, np.generic):
        return value
    # The view stands for subclasses, and for dtypes that are equal but have another number.
    return np.require(value, dtype, "A").view(np.ndarray).view(dtype)


def written_to(place: Any, value: Any) -> Any:
    """Return ``place`` with a value in it, or the value if there is no place."""
    if place is None:
        return value
    if place.shape != value.shape:
        raise ValueError(f"a result has shape {value.shape}, the array that it is written to {place.shape}")
    place[...] = value
    return place
