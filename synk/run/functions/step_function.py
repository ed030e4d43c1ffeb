"""The base of functions that are one step of a command, so that `synk.sequence` can join them.

Function -> StepFunction: GraphFunction, a graph that every rank computes
                          ShardedUpdate, updates of which each rank computes a part
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from synk.run.functions.function import Function
from synk.run.functions.prepared import PreparedStep
from synk.run.functions.selections import CallOptions


class StepFunction(Function):
    """A function whose call is one step on every rank."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise SynkStateError if the function's run was closed."""

    @abstractmethod
    def check_compared(self) -> None:
        """Raise ValueError if the function must be called once by itself before it joins a sequence."""

    @abstractmethod
    def sliced_variables(self) -> tuple[int, ...]:
        """Return the identities of the sliceable shared variables."""

    @abstractmethod
    def prepare_step(self, values: Sequence[Any], options: CallOptions) -> PreparedStep:
        """Check a call, and return its only step."""

    @abstractmethod
    def updated_variables(self) -> tuple[Any, ...]:
        """Return the shared variables that the function updates."""

    def join(self, others: Collection[Any]) -> None:
        """Take note of the shared variables that other parts of the same command update, or collect.

        Raises ValueError if the function cannot run beside them.
        """

    def prepare(self, values: Sequence[Any], options: CallOptions) -> Iterator[list[PreparedStep]]:
        yield [self.prepare_step(values, options)]
