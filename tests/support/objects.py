"""Objects that tests of `synk.on_ranks` make on every rank."""

import weakref
from typing import ClassVar

import numpy as np


class Counter:
    """Counts its calls, and knows its rank."""

    made: ClassVar = weakref.WeakSet()

    def __init__(self, rank, start):
        self.rank, self.count = rank, start
        self.made.add(self)

    def __call__(self, step):
        if step is None:
            raise ValueError(f"rank {self.rank} has no step")
        self.count += step
        return self.rank, self.count


class Caller:
    """Calls a function of this rank on an array that all ranks share."""

    def __init__(self, rank, function, array):
        self.function, self.array = function, array

    def __call__(self, scale):
        (total,) = self.function(np.full(2, scale), self.array)
        return float(total)


def refused(function):
    """Return whether a call is refused, for it takes as equal what on_ranks may have changed."""
    try:
        function()
    except ValueError as error:
        return "as equal on all ranks" in str(error) and "since synk.on_ranks" in str(error)
    return False
