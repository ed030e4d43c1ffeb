"""The communicator of a rank without rows, for meetings within a program: it adds nothing.

Program, for slices without rows -> Absent -> the communicator of the rank
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synk.comm import Communicator


class Absent:
    """The ranks, seen by one without rows: it adds nothing, even where its mean of nothing is NaN."""

    def __init__(self, ranks: Communicator):
        self._ranks = ranks

    def __deepcopy__(self, memo: Any) -> Absent:
        return self  # as communicators do

    @property
    def on_host(self) -> Absent:
        """The same, for NumPy arrays."""
        return Absent(self._ranks.on_host)

    def all_reduce(self, array: Any, op: str) -> Any:
        return self._ranks.all_reduce(nothing_like(array), op)


def nothing_like(array: Any) -> Any:
    """Return zeros, on the side of host and device where ``array`` is."""
    if isinstance(array, np.ndarray | np.generic):
        return np.zeros_like(array)
    zeros = array.copy()
    zeros.fill(0)
    return zeros
