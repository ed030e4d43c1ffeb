"""Run a region: call its C function, and if that gives up, run its nodes in Python.

A region gives up because an argument is no plain array or a demanded condition does not hold. It has then
written nothing that anybody reads: a region that may give up in the middle, at a position out of range for
example, takes no arrays for its results. The C function is called once more with plain arrays; if it gives up
again, the nodes run in Python, which gives the right result or raises the error.
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
    """The implementation of a region.

    Parameters
    ----------
    fgraph : FunctionGraph
        The nodes.
    text : RegionText
        The nodes in C.
    in_python : callable
        Returns a function that runs the nodes in Python and returns a sequence of results.
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
        """Tell whether a call only reads its arguments; one that draws random numbers changes generators."""
        return not self._generators

    def __call__(self, *inputs, out=None):
        call = self._draw if self._generators else self.native.call
        if out is None:
            results = call(*inputs)
            return self._retry(inputs) if results is None else results
        places = out if isinstance(out, tuple) else (out,)
        results = call(*inputs, *places)
        if results is not None:
            return results
        results = self._retry(inputs)
        if self._n_outputs == 1:
            return written_to(places[0], results)
        return tuple(map(written_to, places, results))

    def _draw(self, *given):
        """Call the C function with copies of the generators, so that none is changed if it gives up."""
        copied = list(given)
        for k in self._generators:
            copied[k] = copy_generator(given[k])
        return self.native.call(*copied)

    def _retry(self, inputs):
        """Call the C function with plain arrays; if it gives up again, run the nodes in Python."""
        given = [plain(value, dtype) for value, dtype in zip(inputs, self._dtypes, strict=True)]
        results = (self._draw if self._generators else self.native.call)(*given)
        if results is not None:
            return results
        results = self.program(*given)
        return results[0] if self._n_outputs == 1 else tuple(results)

    @cached_property
    def program(self) -> Callable[..., Sequence[Any]]:
        """The Python program that runs the nodes."""
        return self._make_program()


def plain(value: Any, dtype: str | None) -> Any:
    """Return an array in a form that C and NumPy's functions can read; a scalar or a generator as it is."""
    if dtype is None or isinstance(value, np.generic):
        return value
    # The views get rid of subclasses, and of dtypes that are equal but have another number.
    return np.require(value, dtype, "A").view(np.ndarray).view(dtype)


def written_to(place: Any, value: Any) -> Any:
    """Copy a value into the array ``place`` and return that; return the value if ``place`` is None."""
    if place is None:
        return value
    if place.shape != value.shape:
        raise ValueError(f"a result has shape {value.shape}, the array that it is written to {place.shape}")
    place[...] = value
    return place
