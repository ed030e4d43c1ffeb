"""The interface of all that ranks compute in a call: a function of one graph, or several in a sequence.

GraphFunction, SequenceFunction implement it; `Function` checks and runs it
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from synk.run.arrays.per_rank import Effect
from synk.run.functions.prepared import PreparedStep
from synk.run.functions.selections import CallOptions


class Computation(ABC):
    """A graph, or several and collectives between them, as ranks compute them one call after another."""

    @property
    @abstractmethod
    def scattered(self) -> tuple[Any, ...]:
        """Input variables whose rows are split over the ranks."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[Any, ...]:
        """Output variables as the script gave them, in the order in which a call returns their values.

        None stands for the result of a collective in a sequence.
        """

    @property
    @abstractmethod
    def output_modes(self) -> list[str | None]:
        """The operation by which the ranks' values of each output are combined; None is rank 0's value."""

    @property
    @abstractmethod
    def update_modes(self) -> list[str | None]:
        """The operation by which each update accumulates over slices; None keeps the last slice's value."""

    @property
    def n_results(self) -> int:
        """The number of values that a call returns without ``output_subset``."""
        return len(self.outputs)

    def can_batch(self) -> bool:
        """Return whether there are scattered inputs."""
        return bool(self.scattered)

    @abstractmethod
    def can_batch_s(self) -> bool:
        """Return whether there are sliceable shared variables."""

    def can_slice(self) -> bool:
        """Return whether ``num_slices`` may be more than 1."""
        return self.can_batch() or self.can_batch_s()

    def explain(self, file: TextIO | None = None) -> None:
        """Print how each output and update is combined, why, and which collectives a call costs.

        It names lines of the script and, if shapes are known, as those of shared variables are, the bytes
        that each rank gives to a collective. Nothing is computed or compiled.

        Parameters
        ----------
        file : text file, optional
            By default standard output.

        Examples
        --------
        >>> x = pt.vector("x")
        >>> spread = synk.function([x], x.std(), name="spread")
        >>> spread.explain()
        'spread': rows of 'x' scattered
          output 0 ('std'): the same on every rank, computed after collectives 1, 2 (...)
          collective 1: all-reduce by 'sum' of 1 value, 8 bytes, for Sub (...)
          collective 2: all-reduce by 'sum' of 1 value, 8 bytes, for Sqrt (...)
          a call has 2 collectives in the graph
        """
        print("\n".join(self.explanation()), file=file)

    @abstractmethod
    def gathers(self) -> list[str]:
        """Return a line for each all-gather in the graph, after which every rank has all rows of an array.

        Each call exchanges that array, and every rank computes with all of its rows from there on. `explain`
        prints all collectives.
        """

    def fingerprint(self) -> str:
        """Return 12 hexadecimal digits that identify the graph, as the script wrote it.

        They do not depend on the process, the number of ranks or the values of shared variables; but another
        version of PyTensor may build another graph.
        """
        return hashlib.sha256("\n".join(self.graph_text()).encode()).hexdigest()[:12]

    @abstractmethod
    def explanation(self) -> list[str]:
        """Return the lines that `explain` prints."""

    @abstractmethod
    def graph_text(self) -> list[str]:
        """Return lines of text that describe the graph, from which `fingerprint` is computed."""

    @abstractmethod
    def effects(self) -> Sequence[Effect | None]:
        """Return the effects on shared variables of all steps of a call, in order."""

    @abstractmethod
    def prepare(self, values: Sequence[Any], options: CallOptions) -> Iterator[list[PreparedStep]]:
        """Check a call, and yield its steps, those of one command at a time.

        A next command is prepared only after the one before has run. The ``finish`` of each step returns a
        list of values for the script.
        """

    @abstractmethod
    def check_alone(self, made: set[Any]) -> None:
        """Raise ValueError if the function reads a variable that is per rank, so cannot run on rank 0 alone.

        Variables in ``made`` may be read, as functions that ran before on rank 0 have set them. The function
        adds the variables that it updates.
        """

    @abstractmethod
    def run_alone(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on rank 0 only, on all rows, and return all outputs."""
