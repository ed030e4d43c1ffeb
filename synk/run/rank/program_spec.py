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
    needs_rows: bool  # it accumulates over the rows of a rank; without any it is the identity of its mode
    advances: bool  # a random state: every slice starts from the state that the last one left
    needs_ranks: bool = False  # the ranks meet on the way to it

    @property
    def is_met(self) -> bool:
        """Tell whether it is the same on all ranks and comes out of slices in which they meet."""
        return self.needs_ranks and not self.needs_rows

    @property
    def is_rowless(self) -> bool:
        """Tell whether a rank without rows computes it by itself."""
        return not (self.needs_rows or self.needs_ranks)


@dataclass(frozen=True)
class ProgramSpec:
    """A function in the form that travels: symbolic, the same for all ranks."""

    name: str
    graph: bytes  # inputs: those of `to_spec`; outputs, then updates, then parts
    n_scattered: int
    n_broadcast: int
    sliceables: tuple[int, ...]  # identities
    output_modes: tuple[str | None, ...]
    updates: tuple[UpdateSpec, ...]
    mode: Any = None  # PyTensor Mode; None for the device's own, "debug" for that with every node checked
    needs_ranks: bool = False  # the ranks meet in the middle of the graph
    # Operations by which parts accumulate over slices, if all that the ranks meet for is to combine those;
    parts: tuple[str, ...] = ()
    completed: tuple[int, ...] = ()  # the positions of what is made of them, among outputs, then updates

    @property
    def meets_every_slice(self) -> bool:
        """Tell whether the ranks meet for each slice of a call, not once after the last."""
        return self.needs_ranks and not self.parts

    @property
    def has_rows(self) -> bool:
        """Tell whether anything is scattered or sliced."""
        return bool(self.n_scattered or self.sliceables)
