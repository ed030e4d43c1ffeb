"""Describe what Data, functions and collectives may ask of the run they belong to.

They are given the run and never reach for it, so tests can give them another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from synk.run.arrays.lengths import RowsByRank
from synk.run.arrays.per_rank import PerRank
from synk.run.arrays.shared_storage import SharedStorage
from synk.run.arrays.shared_table import SharedTable
from synk.transport.memory.segments import SegmentTable, StagingBuffers
from synk.values import messages


class Owner(Protocol):
    """A run, as `session.Session` is one."""

    n_ranks: int
    on_machines: bool  # several: memory is copied
    on_gpus: bool  # else ranks read rows where they are, if those are next to each other
    segments: SegmentTable
    staging: StagingBuffers
    temporary: StagingBuffers  # freed at the end of each turn
    shared: SharedTable
    shared_storage: SharedStorage
    lengths: RowsByRank
    per_rank: PerRank

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""

    def turn(self, label: str) -> AbstractContextManager[None]:
        """Keep other threads out while a call is prepared and run; what is inside cannot be re-entered."""

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        """Run steps on all ranks as one command, in a turn; return results by step, then by rank.

        ``start:stop`` are the rows that spans with `messages.TOLD` in them mean.
        """

    def profiled(self, profile: Any) -> AbstractContextManager[None]:
        """Let a profile watch rank 0."""

    def check_imported(self, modules: Collection[str], also_indirectly: bool = False) -> None:
        """Raise SynkStateError if ranks have one of these modules as it was before a reload.

        Those that they import count, too, if ``also_indirectly``.
        """

    def install(self, message: messages.Build) -> None:
        """Give a function to all ranks, in the place of one of the same number."""

    def compile(self, programs: Sequence[tuple[int, int]]) -> None:
        """Compile functions for calls in so many slices, all at the same time, unless that has happened.

        There the ranks agree on what runs as C.
        """

    def run_alone(self, function: int, arrays: Sequence[Any]) -> list[Any]:
        """Run a function on rank 0 only, on all rows."""

    def forget(self, function: int) -> None:
        """Drop a function in all ranks; safe in finalizers, at any moment."""

    def drop_object(self, number: int) -> None:
        """Drop an object of `synk.on_ranks` in all ranks; safe in finalizers, at any moment."""

    def remember(self, command: Any) -> None:
        """Note a command that may be sent again; it is dropped when what it refers to is made anew."""
