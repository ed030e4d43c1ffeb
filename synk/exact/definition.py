"""A function's inputs, outputs and updates, still symbolic.

what a script writes -> define -> Definition -> definition_for_ranks -> Definition: what ranks compute
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable


class Undeclared(Enum):
    """The mode of an output or update without an operation: its value is to be that of one process."""

    UNDECLARED = "undeclared"


UNDECLARED = Undeclared.UNDECLARED


@dataclass(frozen=True)
class Update:
    """A shared variable, its new value, and the operation by which the values of slices accumulate.

    An exact value is that of one process: it is the same in every slice of every rank, also in those without
    rows, whatever ``mode``.
    """

    variable: SharedVariable
    value: Variable
    mode: Any  # one of `MODES`, or `UNDECLARED`
    exact: bool = False
    # Whether the variable has different values on the ranks after the update. None: it does if it did before,
    # or if one of the ``sources`` does.
    per_rank: bool | None = None
    sources: tuple[SharedVariable, ...] = ()  # shared variables from which a declared new value is computed


@dataclass(frozen=True)
class Definition:
    """The inputs, outputs and updates of a function, still symbolic, after they were checked."""

    name: str
    inputs: tuple[Variable, ...]
    bcast_inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    output_modes: tuple[Any, ...]  # with "c_" prefixes
    output_axes: tuple[int, ...]  # the axis of the rows in gathered outputs; in the graph they are on axis 0
    returns: str  # "list", "single" or "none"
    updates: tuple[Update, ...]
    givens: tuple[tuple[Variable, Variable], ...]
    sliceables: tuple[SharedVariable, ...]
    mode: Any
    # Shared variables whose values must be equal on all ranks, or a call is refused; and, for some of them,
    # what the error advises (see `whole`).
    takes_equal: tuple[SharedVariable, ...] = ()
    remedies: tuple[tuple[SharedVariable, str], ...] = ()
    # If there are all-reduces in the graph: the values that accumulate over slices, each with its operation,
    # before one all-reduce combines them. If that is not possible, the reason why a call takes one slice
    # only.
    parts: tuple[tuple[Variable, str], ...] = ()
    completed: tuple[int, ...] = ()  # positions of results computed from parts; outputs come before updates
    needs_all_rows: str = ""
    # Outputs, then new values, in the dtypes that the user's graph declares; ``outputs`` and ``updates`` have
    # the dtypes that its Ops compute.
    as_written: tuple[Variable, ...] = ()

    @property
    def all_inputs(self) -> tuple[Variable, ...]:
        """Scattered inputs, then broadcast ones."""
        return self.inputs + self.bcast_inputs

    @property
    def results(self) -> list[Variable]:
        """Outputs, then the new values of updates."""
        return [*self.outputs, *(update.value for update in self.updates)]

    @property
    def modes(self) -> list[Any]:
        """The modes of `results`."""
        return [*self.output_modes, *(update.mode for update in self.updates)]
