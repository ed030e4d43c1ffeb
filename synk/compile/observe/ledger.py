"""Account for the arrays that nodes make: how many bytes are alive, and when they are most.

Works by weak references, so it costs next to nothing, slows nothing down and serves every array module.
What a node allocates and frees while it runs is not seen.
"""

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np


class Ledger:
    """Bytes of living arrays.

    Attributes
    ----------
    current, peak : int
        Bytes now, and at most so far.
    at : str
        After which node the peak was reached.
    """

    def __init__(self) -> None:
        self.current, self.peak, self.at = 0, 0, ""
        self._alive: dict[int, weakref.ref] = {}

    def add(self, node: str, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Enter what a node made; views of its inputs, and inputs that it wrote to, are not new."""
        known = self._alive.keys() | {id(memory_of(value)) for value in inputs}
        for value in map(memory_of, results):
            if id(value) not in known and hasattr(value, "nbytes") and not isinstance(value, np.generic):
                self.current += value.nbytes
                drop = partial(self._drop, id(value), value.nbytes)
                self._alive[id(value)] = weakref.ref(value, drop)
                known = known | {id(value)}
        if self.current > self.peak:
            self.peak, self.at = self.current, node

    def _drop(self, identity: int, nbytes: int, _: weakref.ref) -> None:
        self.current -= nbytes
        del self._alive[identity]


def memory_of(value: Any) -> Any:
    """Return the array that owns the memory of ``value``; values that are no arrays own themselves."""
    base = getattr(value, "base", None)
    while base is not None and isinstance(base, type(value)):
        value, base = base, base.base
    return value
