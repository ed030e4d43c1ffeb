"""Describe what Data, functions and collectives may ask of the run they belong to.

They are given the run and never reach for it, so tests can give them another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from synk.run.arrays.run_memory import RunMemory
from synk.values import messages


class Functions(Protocol):
    """The master's record of functions and objects that the ranks have, as `session.FunctionTable` is one."""

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

    def profiled(self, profile: Any) -> AbstractContextManager[None]:
        """Return a context in which a profile watches rank 0."""


class Owner(Protocol):
    """A run, as `session.Session` is one."""

    on_machines: bool  # several: memory is copied
    on_gpus: bool  # else ranks read rows where they are, if those are next to each other
    memory: RunMemory

    @property
    def functions(self) -> Functions: ...

    @property
    def n_ranks(self) -> int: ...

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""

    def turn(self, label: str) -> AbstractContextManager[None]:
        """Keep other threads out while a call is prepared and run; what is inside cannot be re-entered."""

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        """Run steps on all ranks as one command, in a turn; return results by step, then by rank.

        ``start:stop`` are the rows that spans with `messages.IN_COMMAND` in them mean.
        """

    def check_imported(self, modules: Collection[str], also_indirectly: bool = False) -> None:
        """Raise SynkStateError if ranks have one of these modules as it was before a reload.

        Those that they import count, too, if ``also_indirectly``.
        """
