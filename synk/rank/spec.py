"""A function in the form that travels to the ranks.

Definition -> ProgramSpec, in a Build message -> Program
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UpdateSpec:
    """The update of one shared variable."""

    variable: int  # identity
    mode: str | None  # how slices accumulate; None keeps the last
    needs_rows: bool
    advances: bool  # a random state: every slice starts from the state that the last one left


@dataclass(frozen=True)
class ProgramSpec:
    """A function in the form that travels: symbolic, the same for all ranks."""

    name: str
    graph: bytes  # inputs: scattered, broadcast, rows of sliceables, n_rows, ranks; outputs, then updates
    n_scattered: int
    n_broadcast: int
    sliceables: tuple[int, ...]  # identities
    output_modes: tuple[str | None, ...]
    updates: tuple[UpdateSpec, ...]
    mode: Any = None  # PyTensor Mode; None for the device's own, "debug" for that with every node checked
    needs_ranks: bool = False  # the ranks meet in the middle of the graph

    @property
    def has_rows(self) -> bool:
        """Tell whether anything is scattered or sliced."""
        return bool(self.n_scattered or self.sliceables)
