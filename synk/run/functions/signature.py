"""The inputs of a function by position and name, and its outputs by number.

arguments of a call, by position and by name -> Signature.order -> one value for each input
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synk.exact.run_values import describe


class Signature:
    """The inputs of a function: its symbolic variables in order, some of which have names."""

    def __init__(self, name: str, inputs: Sequence[Any]):
        self.name = name  # of the function, in errors
        self.inputs = tuple(inputs)
        names = [variable.name for variable in inputs]
        # Inputs whose name another one has, too, are given by position only.
        self._position = {
            name: position for position, name in enumerate(names) if name and names.count(name) == 1
        }

    def __str__(self) -> str:
        names = ", ".join(describe(variable) for variable in self.inputs)
        return f"{self.name!r} of ({names})"

    def order(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the values of a call in the order of the inputs.

        Raises TypeError if one is missing, unknown or given twice.
        """
        if not kwargs and len(args) == len(self.inputs):
            return args
        missing = object()
        values: list[Any] = [missing] * len(self.inputs)
        if len(args) > len(values):
            raise TypeError(f"{self.name!r} takes {len(values)} inputs, got {len(args)}")
        values[: len(args)] = args
        for name, value in kwargs.items():
            if name not in self._position:
                raise TypeError(f"{self.name!r} has no input {name!r}; it has {sorted(self._position)}")
            if values[self._position[name]] is not missing:
                raise TypeError(f"input {name!r} of {self.name!r} is given twice")
            values[self._position[name]] = value
        absent = [describe(var) for var, value in zip(self.inputs, values, strict=True) if value is missing]
        if absent:
            raise TypeError(f"{self.name!r} misses input {', '.join(absent)}")
        return values


def check_subset(subset: Any, n_outputs: int) -> tuple[int, ...] | None:
    """Return ``output_subset`` as a tuple of valid output numbers, or None for all."""
    if subset is None:
        return None
    if not isinstance(subset, list | tuple):
        raise TypeError(f"output_subset must be a list of ints, got {type(subset).__name__}")
    for output in subset:
        if isinstance(output, bool) or not isinstance(output, int | np.integer):
            raise TypeError(f"output_subset must hold ints, got {output!r}")
        if not 0 <= output < n_outputs:
            raise ValueError(f"output_subset names output {output}, there are {n_outputs}")
    return tuple(int(output) for output in subset)
