"""Pickle arguments of `synk.on_ranks`, and find the functions, shared variables and `Data` in them.

Those are written as numbers, by which each rank finds its own (`synk.run.rank.objects`). Code that reads them
as globals, attributes or closures is refused, as on rank 0 it would read the script's objects instead.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.run.functions.function import Function
from synk.run.functions.graph_function import GraphFunction
from synk.values.by_value import CODE, CodePickler


class ArgumentPickler(CodePickler):
    """A pickler that writes functions, shared variables and Data as numbers; each rank finds its own."""

    def __init__(self, file: Any, owner: Owner, changes: list[Any]):
        super().__init__(file)
        self.found: list[Any] = []
        self._owner, self._changes = owner, changes
        self._read: list[tuple[str, Any]] = []  # what pickled code reads: (description, value)

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, CODE) and reduced is not NotImplemented and len(reduced) == 6:
            self._read += _read_by(obj, *reduced[2][-1])
        return reduced

    def check_read(self, label: str) -> None:
        """Raise TypeError if code reads a function, shared variable or Data that is no argument."""
        for what, value in self._read if self.found else ():
            finder = _Finder(io.BytesIO(), self._owner, self._changes)
            finder.dump(value)
            if finder.found:
                raise TypeError(
                    f"{label} reads {what}, which has {finder.found[0]!r}: on rank 0 that is the script's "
                    "own, on the others something else; pass it as an argument, "
                    "synk.on_ranks(make, *arguments)"
                )

    def newly_found(self, before: list[Any]) -> list[Any]:
        """Return the functions, variables and Data that were pickled, each once, without those ``before``."""
        known = set(map(id, before))
        return [one for key, one in {id(one): one for one in self.found}.items() if key not in known]

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, GraphFunction):
            named: Any = "function", value.ready()
        elif isinstance(value, Data):
            named = "array", value.ref()
        elif isinstance(value, SharedVariable):
            changes = any(value is one for one in self._changes)
            (identity,) = self._owner.memory.shared.identify_read([value])
            named = "variable", (identity, changes)
        elif isinstance(value, Function):
            raise TypeError(f"{value!r} is a sequence, in which the ranks meet; give its functions")
        else:
            return None
        self.found.append(value)
        return named


class _Finder(ArgumentPickler):
    """A pickler that only finds functions, shared variables and Data in a value; its output is not used.

    It does not look into Python functions and classes.
    """

    def reducer_override(self, obj: Any) -> Any:
        return (hash, (0,)) if isinstance(obj, CODE) else NotImplemented


def _read_by(code: Any, attributes: dict[str, Any], state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (description, value) for each attribute, global, closure and default of a function or class."""
    for name, value in attributes.items():
        yield f"attribute {name!r} of {code.__qualname__}", value
    for name, value in state.get("__globals__", {}).items():
        yield f"global {name!r}", value
    if isinstance(code, FunctionType):
        for name, value in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
            yield f"{name!r} of the function around it", value
        yield f"a default of {code.__qualname__}", (code.__defaults__, code.__kwdefaults__)
