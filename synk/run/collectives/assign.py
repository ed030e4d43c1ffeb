"""The collectives that set shared variables on ranks: `Broadcast`, `Scatter` and `SetValue`.

The values are rank 0's own, or arrays and `Data` of the script.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.tensor.random.type import RandomType

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.data import Data
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import FIRST, OWN, ROWS
from synk.run.collectives.collective import Collective, checked_rank, is_array, replace_all
from synk.run.collectives.hand_out import BroadcastStep, OutgoingValue, staged_step, write_now
from synk.run.functions.prepared import PreparedStep
from synk.run.functions.selections import filtered, fits
from synk.run.rank.rank import Rank
from synk.values.checks import checked_flag
from synk.values.messages import Step
from synk.values.rows import SelectedRows, select, split


class Assignment(Collective[None]):
    """A collective that sets shared variables to ``values``, or to those rows that ``batch`` selects."""

    def __init__(self, shared_vars: Any, values: Any, batch: Any = None):
        super().__init__(shared_vars)
        self._values, self._batch = values, batch

    @abstractmethod
    def shares(self, variable: Any, array: Any, n_ranks: int) -> Sequence[SelectedRows | None]:
        """Return for each rank the rows of ``array`` that it gets, or None if its value stays as it is."""

    def prepare(self, run: Owner) -> PreparedStep:
        given = self._outgoing_values(run)
        return PreparedStep(staged_step(run, given), None, tuple([one.variable for one in given]))

    def prepare_alone(self, run: Owner) -> list[PreparedStep]:
        given = self._outgoing_values(run)
        run.memory.lengths.forget([one.variable for one in given])
        return [PreparedStep(step, None) for step in write_now(run, given)]

    def selected(self, variable: Any, array: Any) -> SelectedRows:
        """Return the rows of ``array`` that ``batch`` selects; by default all of them."""
        if array.ndim == 0:
            raise ValueError(f"the value of {describe(variable)} is 0-d, so it has no rows")
        return select(self._batch, len(array), owner=f"the values of {describe(variable)}")

    def _outgoing_values(self, run: Owner) -> list[OutgoingValue]:
        """Check the values, and return each with the rows of it that every rank gets."""
        pairs = zip(self.variables, self._entries(), strict=True)
        arrays = [_fitting(variable, value) for variable, value in pairs]
        pairs = zip(self.variables, arrays, strict=True)
        rows = [self.shares(variable, array, run.n_ranks) for variable, array in pairs]
        for variable, of_ranks in zip(self.variables, rows, strict=True):
            _check_static_rows(variable, [len(chosen) for chosen in of_ranks if chosen is not None])
        return [*map(OutgoingValue, self.identities(run), arrays, rows)]

    def _entries(self) -> list[Any]:
        """Return ``values`` as a list with one entry for each variable."""
        values, n_variables = self._values, len(self.variables)
        if not self._is_list:
            return [values]
        if not isinstance(values, list | tuple) or len(values) != n_variables:
            raise TypeError(f"values must be a list with one entry for each of the {n_variables} variables")
        return list(values)


class Broadcast(Assignment):
    """Give all ranks the same values.

    If the variable is a random state, each rank gets its own stream of random numbers, made from rank 0's.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    values : array_like or Data, or list of those, optional
        One for each variable; by default the values of rank 0.
    nccl : bool
        Of Synkhronos; accepted and ignored.

    Raises
    ------
    TypeError, ValueError
        If a value does not fit the variable.

    See Also
    --------
    synk.scatter : gives each rank its part of the rows.
    synk.set_value : sets the value on one rank.

    Examples
    --------
    >>> rate = pytensor.shared(0.1, name="rate")
    >>> synk.broadcast(rate, 0.01)
    >>> print(synk.get_value(1, rate))
    0.01
    """

    name = "broadcast"
    takes_arrays_only = False
    leaves_equal = True

    def __init__(self, shared_vars: Any, values: Any = None, *, nccl: bool = True):
        checked_flag("nccl", nccl)
        super().__init__(shared_vars, values)

    def shares(self, variable: Any, array: Any, n_ranks: int) -> Sequence[SelectedRows | None]:
        return [_all(array)] * n_ranks

    def prepare(self, run: Owner) -> PreparedStep:
        for variable in self.variables:
            if not is_array(variable):
                # It travels beside commands, so within one it would come too early.
                kind = "random state" if isinstance(variable.type, RandomType) else "shared variable"
                raise TypeError(
                    f"{kind} {describe(variable)} cannot be broadcast in a sequence; "
                    "broadcast it in a call of its own"
                )
        return self._own_values(run) if self._values is None else super().prepare(run)

    def prepare_alone(self, run: Owner) -> list[PreparedStep]:
        if self._values is not None:
            return super().prepare_alone(run)
        # Sparse matrices and random states are sent; each rank makes its own stream of a random state.
        run.memory.shared.resend([variable for variable in self.variables if not is_array(variable)])
        return [self._own_values(run)]

    def _own_values(self, run: Owner) -> PreparedStep:
        """Return the step that broadcasts rank 0's values of those variables that are arrays."""
        variables = run.memory.shared.identify_all(
            [variable for variable in self.variables if is_array(variable)]
        )
        run.memory.shared_storage.ensure(variables)
        return PreparedStep(BroadcastStep(variables), None, variables)


class Scatter(Assignment):
    """Split the rows of values over the ranks, as evenly as `numpy.array_split` does.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    values : array_like or Data, or list of those
        One for each variable.
    batch : int, slice or 1-D sequence of int, optional
        The rows to split, as in a call of a function; by default all.

    Raises
    ------
    TypeError, ValueError, IndexError
        If a value does not fit the variable, or `batch` the values.

    See Also
    --------
    synk.gather : joins the parts again.
    synk.get_lengths : tells how many rows each rank has.

    Examples
    --------
    >>> table = pytensor.shared(np.zeros((2, 2)), name="table")
    >>> synk.scatter(table, np.arange(6.0).reshape(3, 2))
    >>> synk.get_value(0, table).tolist(), synk.get_value(1, table).tolist()
    ([[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]])
    """

    name = "scatter"
    leaves_equal = False
    leaves_kind = ROWS

    def shares(self, variable: Any, array: Any, n_ranks: int) -> Sequence[SelectedRows | None]:
        rows = self.selected(variable, array)
        return [rows.part(*part) for part in split(len(rows), n_ranks)]


class SetValue(Assignment):
    """Set the value on one rank; the others keep theirs.

    A random state is set to a generator, as `synk.get_value` returns one: the rank then continues its stream.

    Parameters
    ----------
    rank : int
        From 0 to ``n_ranks() - 1``.
    shared_vars : shared variable, or list of them
    values : array_like or Data, or list of those
        One for each variable.
    batch : int, slice or 1-D sequence of int, optional
        The rows to take; by default all.

    Raises
    ------
    TypeError, ValueError, IndexError
        If there is no such rank, a value does not fit the variable, or `batch` the values.

    See Also
    --------
    synk.get_value : reads the value on one rank.
    synk.broadcast : sets it on all ranks.

    Examples
    --------
    >>> w = pytensor.shared(np.zeros(2), name="w")
    >>> synk.set_value(1, w, [3.0, 4.0])
    >>> synk.gather(w).tolist()
    [[0.0, 0.0], [3.0, 4.0]]
    """

    name = "set_value"
    leaves_equal = False
    takes_arrays_only = False

    def __init__(self, rank: int, shared_vars: Any, values: Any, batch: Any = None):
        super().__init__(shared_vars, values, batch)
        self._rank = rank
        self.leaves_kind = FIRST if isinstance(rank, int | np.integer) and rank == 0 else OWN

    def prepare(self, run: Owner) -> PreparedStep:
        return self._states(run) or super().prepare(run)

    def prepare_alone(self, run: Owner) -> list[PreparedStep]:
        states = self._states(run)
        return [states] if states else super().prepare_alone(run)

    def _states(self, run: Owner) -> PreparedStep | None:
        """Return the step that sets random states, or None if a value is no generator."""
        pairs = list(zip(self.variables, self._entries(), strict=True))
        if not all(isinstance(value, np.random.Generator) for _, value in pairs):
            return None
        # `filter` raises if the variable is no random state, or needs another kind of generator.
        states = tuple([copy_of(variable.type.filter(value)) for variable, value in pairs])
        return PreparedStep(SetStatesStep(self.identities(run), checked_rank(self._rank, run), states), None)

    def shares(self, variable: Any, array: Any, n_ranks: int) -> Sequence[SelectedRows | None]:
        rows = _all(array) if self._batch is None else self.selected(variable, array)
        return [rows if rank == self._rank else None for rank in range(n_ranks)]

    def described(self) -> str:
        return f"synk.{self.name} on rank {self._rank}"

    def _outgoing_values(self, run: Owner) -> list[OutgoingValue]:
        checked_rank(self._rank, run)
        return super()._outgoing_values(run)


@dataclass(slots=True)
class SetStatesStep(Step):
    """Set random states on one rank, unchanged: no stream of the rank's own is made from them."""

    variables: tuple[int, ...]
    rank: int
    states: tuple[Any, ...]

    def run(self, rank: Rank) -> None:
        if rank.rank == self.rank:
            replace_all(rank, self.variables, self.states)


def _fitting(variable: Any, value: Any) -> Any:
    """Return ``value`` as an array of the variable's type, `Data` unchanged; raise if it does not fit."""
    if not is_array(variable):
        raise TypeError(
            f"shared variable {describe(variable)} is not an array; "
            "set it on the master and broadcast it without values"
        )
    if not isinstance(value, Data):
        return filtered(variable, value, "value of")
    if value.dtype != np.dtype(variable.type.dtype) or value.ndim != variable.type.ndim:
        raise TypeError(
            f"{describe(variable)} is {variable.type}; "
            f"the Data has dtype {value.dtype} and {value.ndim} dimensions"
        )
    if not fits(value.shape[1:], variable.type.shape[1:]):
        raise TypeError(f"{describe(variable)} is {variable.type}; the Data has shape {value.shape}")
    return value


def _check_static_rows(variable: Any, lengths: Sequence[int]) -> None:
    """Raise TypeError if the variable's type fixes its number of rows and a rank would get another number.

    Programs are compiled for the number in the type.
    """
    static = variable.type.shape[0] if variable.type.ndim else None
    if static is not None and any(length != static for length in lengths):
        raise TypeError(
            f"{describe(variable)} has {static} rows by its type, the ranks would get {list(lengths)}; "
            "make it without a static length of axis 0"
        )


def _all(array: Any) -> SelectedRows:
    """Return the selection of all rows; it is empty for a 0-d array, which is copied as a whole."""
    return SelectedRows(0, len(array) if array.ndim else 0)
