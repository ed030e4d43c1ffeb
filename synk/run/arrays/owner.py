"""The interface of a run to its Data, functions and collectives.

They get the run as an argument instead of looking for the open one, so tests can pass a substitute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from synk.run.arrays.run_memory import RunMemory
from synk.values import messages


class Functions(Protocol):
    """The master's record of what functions and objects ranks have; `session.FunctionTable` implements it."""

    def install(self, message: messages.Build) -> None:
        """Send a function to all ranks, where it replaces a function of the same number."""

    def compile(self, programs: Sequence[tuple[int, int]]) -> None:
        """Compile functions on all ranks at the same time, except those that are compiled already.

        ``programs`` are pairs of a function's number and a number of slices. While they compile, the ranks
        also agree on which parts of the graphs run as C.
        """

    def run_alone(self, function: int, arrays: Sequence[Any]) -> list[Any]:
        """Run a function on rank 0 only, on all rows, and return its outputs."""

    def forget(self, function: int) -> None:
        """Drop a function in all ranks; safe in finalizers, at any moment."""

    def drop_object(self, number: int) -> None:
        """Drop an object of `synk.on_ranks` in all ranks; safe in finalizers, at any moment."""

    def profiled(self, profile: Any) -> AbstractContextManager[None]:
        """Return a context in which ``profile`` measures what rank 0 runs."""


class Owner(Protocol):
    """A run; `session.Session` implements it."""

    on_machines: bool  # on several machines: the others get copies of shared memory
    on_host: bool  # arrays are in host memory: ranks read contiguous rows in place, without gathering them
    memory: RunMemory

    @property
    def functions(self) -> Functions: ...

    @property
    def n_ranks(self) -> int: ...

    def check_open(self, what: str) -> None:
        """Raise SynkStateError if the run was closed, or this process is not its master."""

    def turn(self, label: str) -> AbstractContextManager[None]:
        """Return a context for preparing and running one call; other threads wait, and calls cannot nest."""

    def run(self, steps: tuple[Any, ...], start: int = 0, stop: int = 0) -> list[tuple[Any, ...]]:
        """Run steps on all ranks as one command; return results by step, then by rank. Call it in a `turn`.

        ``start:stop`` are the rows of the calls whose span is `messages.IN_COMMAND` instead of rows of its
        own.
        """

    def check_imported(self, modules: Collection[str], also_indirectly: bool = False) -> None:
        """Raise SynkStateError if the script has reloaded one of these modules since the ranks imported it.

        With ``also_indirectly``, the modules that they import are checked, too.
        """
