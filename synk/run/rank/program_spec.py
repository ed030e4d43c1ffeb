"""A function in the form in which it is sent to the ranks.

Definition -> specify.to_spec -> ProgramSpec, in a Build message -> RankProgram
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class UpdateSpec:
    """The update of one shared variable, in the form in which it is sent."""

    variable: int  # its identity
    mode: str | None  # the operation that accumulates the values of slices; None keeps the last slice's
    needs_rows: bool  # it accumulates over a rank's rows; a rank without rows gets the identity of the mode
    advances: bool  # it is a random state: each slice starts from the state that the one before has left
    needs_ranks: bool = False  # its graph contains collectives

    @property
    def is_collective(self) -> bool:
        """Tell whether collectives make its value, the same on all ranks; a rank without rows takes part."""
        return self.needs_ranks and not self.needs_rows

    @property
    def is_rowless(self) -> bool:
        """Tell whether a rank without rows computes it by itself."""
        return not (self.needs_rows or self.needs_ranks)


@dataclass(frozen=True)
class ProgramSpec:
    """A function in the form in which it is sent: its graph, not compiled, the same for all ranks."""

    name: str
    graph: bytes  # pickled, with the inputs that `to_spec` lists; results: outputs, then updates, then parts
    n_scattered: int
    n_broadcast: int
    sliceables: tuple[int, ...]  # identities of the sliceable shared variables
    output_modes: tuple[str | None, ...]
    updates: tuple[UpdateSpec, ...]
    mode: Any = None  # PyTensor Mode; None for the device's own, "debug" for that with every node checked
    needs_ranks: bool = False  # the graph contains collectives
    # If the only collectives of the graph reduce parts (sums over a rank's rows, say), the slices of a rank
    # accumulate the parts first, by these operations, and the ranks meet once, after the last slice.
    parts: tuple[str, ...] = ()
    completed: tuple[int, ...] = ()  # positions of results computed from parts: outputs, then updates

    @property
    def meets_every_slice(self) -> bool:
        """Tell whether the ranks meet in collectives in each slice, not once after the last slice."""
        return self.needs_ranks and not self.parts

    @property
    def has_rows(self) -> bool:
        """Tell whether the function reads rows: of scattered inputs or of sliceable variables."""
        return bool(self.n_scattered or self.sliceables)
