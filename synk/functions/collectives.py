"""Collectives on shared variables: what may be asked, and what is made of the answers.

    synk.all_reduce(v) -> Collectives.all_reduce -> check -> step -> all ranks -> result

Each verb is a small function from its arguments to a `Prepared` step, so that `sequence` can
put it into a command of several steps.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.type import DenseTensorType

from synk.arrays.data import Data
from synk.arrays.owner import Owner
from synk.arrays.variables import describe
from synk.functions.calls import filtered, fits
from synk.functions.command import Command, Lasting
from synk.functions.function import Prepared
from synk.functions.handout import HandOut
from synk.values import messages
from synk.values.reduction import check_operation
from synk.values.rows import Rows, select, split


class Last(NamedTuple):
    """A collective on one variable, to be sent again by the call that repeats it."""

    variable: weakref.ref[Any]
    options: tuple[Any, ...]
    command: Command

    def repeated_by(self, args: tuple[Any, ...]) -> bool:
        """Return whether the arguments of a call ask for the same."""
        same = args[0] is not None and self.variable() is args[0] and self.options == args[1:]
        return same and self.command.rows((), None, 1) is not None


class Collectives:
    """The collectives of one run.

    Parameters
    ----------
    owner : Owner
    """

    def __init__(self, owner: Owner):
        self._owner = owner
        self._slots = itertools.count()
        self._last: dict[str, Last] = {}  # by verb

    def run(self, verb: str, *args: Any) -> Any:
        """Run one collective as a command of its own."""
        last = self._last.get(verb)
        if last is not None and last.repeated_by(args):
            self._owner.run(last.command.steps)
            return None
        prepared = getattr(self, verb)(*args)
        result = self._run(prepared)
        if isinstance(args[0], SharedVariable) and prepared.lasting is not None:
            self._last[verb] = self._remembered(prepared, *args)
        return result

    def _remembered(self, prepared: Prepared, variable: Any, *options: Any) -> Last:
        command = Command((prepared.step,), [None], [prepared.lasting], (), 1)
        self._owner.remember(command)
        return Last(weakref.ref(variable), options, command)

    def _run(self, prepared: Prepared | HandOut) -> Any:
        self._owner.forget_lengths(prepared.reshapes)
        if isinstance(prepared, HandOut):
            self._owner.run(tuple(prepared.steps()))
            return None
        results = self._owner.run((prepared.step,))[0]
        return None if prepared.finish is None else prepared.finish(results)

    # --- verbs that only combine what the ranks have ---------------------------------------------

    def all_reduce(self, shared_vars: Any, op: str = "avg", nccl: bool = True) -> Prepared:
        variables = self._tensors(shared_vars)
        _check_reducible(variables, op)
        identities = self._identities(variables)
        self._owner.shared_storage.ensure(identities)
        return Prepared(messages.AllReduce(identities, op), None, lasting=Lasting(variables=identities))

    def reduce(self, shared_vars: Any, op: str = "avg", in_place: bool = True, nccl: bool = True) -> Prepared:
        variables = self._tensors(shared_vars)
        _check_reducible(variables, op)
        identities = self._identities(variables)
        self._owner.shared_storage.ensure(identities)
        step = messages.Reduce(identities, op, bool(in_place))
        if in_place:
            return Prepared(step, None, lasting=Lasting(variables=identities))
        return Prepared(step, lambda results: _like(shared_vars, results[0]))

    def all_gather(self, shared_vars: Any, nccl: bool = True) -> Prepared:
        variables = self._tensors(shared_vars)
        for variable in variables:
            if variable.type.ndim == 0:
                raise ValueError(f"{describe(variable)} is 0-d, so it has no axis to join along")
            if self._owner.n_ranks > 1 and variable.type.shape[0] is not None:
                raise TypeError(
                    f"{describe(variable)} has {variable.type.shape[0]} rows by its type, so it cannot grow"
                )
        identities = self._identities(variables)
        self._owner.shared_storage.ensure(identities, alike=False)

        def finish(results: Sequence[Any]) -> None:
            for identity in identities:
                self._owner.shared_storage.note_reshaped(identity)

        return Prepared(messages.AllGather(identities), finish, identities)

    def gather(self, shared_vars: Any, nd_up: int = 1, nccl: bool = True) -> Prepared:
        if nd_up not in (0, 1):
            raise ValueError(f"nd_up={nd_up!r} is neither 0 (join along axis 0) nor 1 (stack on a new axis)")
        variables = self._tensors(shared_vars)
        for variable in variables:
            if nd_up == 0 and variable.type.ndim == 0:
                raise ValueError(f"{describe(variable)} is 0-d, so it has no axis to join along; use nd_up=1")
        identities = self._identities(variables)
        self._owner.shared_storage.ensure(identities, alike=False)

        def finish(results: Sequence[Any]) -> Any:
            gathered = zip(variables, results[0], strict=True)  # rank 0 has joined them
            return _like(shared_vars, [_joined(variable, value, nd_up) for variable, value in gathered])

        return Prepared(messages.Gather(identities, nd_up), finish)

    def get_value(self, rank: int, shared_vars: Any) -> Prepared:
        rank = self._checked_rank(rank)
        identities = self._identities(_listed(shared_vars))
        read = tuple(rank > 0 and self._owner.shared_storage.has(identity) for identity in identities)
        step = messages.Fetch(identities, rank, read)

        def finish(results: Sequence[Any]) -> Any:
            # Rank 0 has read those that live in shared memory; the others were sent.
            both = zip(results[0], results[rank], strict=True)
            return _like(shared_vars, [sent if read is None else read for read, sent in both])

        return Prepared(step, finish)

    def get_shapes(self, shared_vars: Any) -> Prepared:
        return self._shapes(shared_vars, lambda shape: shape)

    def get_lengths(self, shared_vars: Any) -> Prepared:
        for variable in self._tensors(shared_vars):
            if variable.type.ndim == 0:
                raise ValueError(f"{describe(variable)} is 0-d, so it has no length")
        return self._shapes(shared_vars, lambda shape: shape[0])

    def _shapes(self, shared_vars: Any, part: Any) -> Prepared:
        step = messages.Shapes(self._identities(self._tensors(shared_vars)))
        return Prepared(
            step,
            lambda results: _like(
                shared_vars, [[part(shape) for shape in of_ranks] for of_ranks in zip(*results, strict=True)]
            ),
        )

    def check_finite(self, shared_vars: Any) -> Prepared:
        identities = self._identities(self._tensors(shared_vars))
        return Prepared(messages.CheckFinite(identities), None, lasting=Lasting())

    # --- verbs that hand out values --------------------------------------------------------------

    def broadcast(self, shared_vars: Any, values: Any = None, nccl: bool = True) -> Prepared | HandOut:
        variables = _listed(shared_vars)
        if values is not None:
            entries = _paired(shared_vars, values)
            arrays = [
                self._value(variable, value) for variable, value in zip(variables, entries, strict=True)
            ]
            return self._assign(variables, arrays, [[_all(array)] * self._owner.n_ranks for array in arrays])
        tensors = [variable for variable in variables if isinstance(variable.type, DenseTensorType)]
        # Sparse matrices; and random states, of which each rank takes its own stream.
        self._owner.shared.resend([one for one in variables if not isinstance(one.type, DenseTensorType)])
        identities = self._identities(tensors)
        self._owner.shared_storage.ensure(identities)
        return Prepared(messages.Broadcast(identities), None, identities)

    def scatter(self, shared_vars: Any, values: Any, batch: Any = None) -> HandOut:
        variables = self._tensors(shared_vars)
        entries = _paired(shared_vars, values)
        arrays = [self._value(variable, value) for variable, value in zip(variables, entries, strict=True)]
        n_ranks = self._owner.n_ranks
        selected = [
            self._rows(variable, array, batch) for variable, array in zip(variables, arrays, strict=True)
        ]
        shards = [[rows.part(*part) for part in split(len(rows), n_ranks)] for rows in selected]
        return self._assign(variables, arrays, shards)

    def set_value(self, rank: int, shared_vars: Any, values: Any, batch: Any = None) -> HandOut:
        rank = self._checked_rank(rank)
        variables = self._tensors(shared_vars)
        entries = _paired(shared_vars, values)
        arrays = [self._value(variable, value) for variable, value in zip(variables, entries, strict=True)]
        chosen: list[list[Rows | None]] = []
        for variable, array in zip(variables, arrays, strict=True):
            of_ranks: list[Rows | None] = [None] * self._owner.n_ranks
            of_ranks[rank] = _all(array) if batch is None else self._rows(variable, array, batch)
            chosen.append(of_ranks)
        return self._assign(variables, arrays, chosen)

    def _assign(
        self, variables: Sequence[Any], arrays: Sequence[Any], rows: Sequence[Sequence[Rows | None]]
    ) -> HandOut:
        for variable, of_ranks in zip(variables, rows, strict=True):
            _check_static_rows(variable, [len(chosen) for chosen in of_ranks if chosen is not None])
        return HandOut(self._owner, self._identities(variables), arrays, rows, next(self._slots))

    # --- checks ------------------------------------------------------------------------------

    def _identities(self, variables: Sequence[Any]) -> tuple[int, ...]:
        return self._owner.shared.identify_all(variables)

    def _tensors(self, shared_vars: Any) -> list[Any]:
        variables = _listed(shared_vars)
        for variable in variables:
            if not isinstance(variable.type, DenseTensorType):
                raise TypeError(
                    f"shared variable {describe(variable)} is not an array: it is {variable.type}"
                )
        return variables

    def _checked_rank(self, rank: Any) -> int:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer):
            raise TypeError(f"rank={rank!r} is not an integer")
        if not 0 <= rank < self._owner.n_ranks:
            raise IndexError(f"rank={rank} is out of range: the run has {self._owner.n_ranks} ranks")
        return int(rank)

    @staticmethod
    def _value(variable: Any, value: Any) -> Any:
        """Return a value as a Data or an array that fits the variable."""
        if not isinstance(variable.type, DenseTensorType):
            raise TypeError(
                f"{describe(variable)} is not an array; set it on the master and broadcast it without values"
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

    @staticmethod
    def _rows(variable: Any, array: Any, batch: Any) -> Rows:
        if array.ndim == 0:
            raise ValueError(f"the value of {describe(variable)} is 0-d, so it has no rows")
        return select(batch, len(array), owner=f"the values of {describe(variable)}")


def _check_static_rows(variable: Any, lengths: Sequence[int]) -> None:
    """Refuse rows that contradict a static length: programs are compiled for that one."""
    static = variable.type.shape[0] if variable.type.ndim else None
    if static is not None and any(length != static for length in lengths):
        raise TypeError(
            f"{describe(variable)} has {static} rows by its type, the ranks would get {list(lengths)}; "
            "make it without a static length of axis 0"
        )


def _all(array: Any) -> Rows:
    """Return all rows; of a 0-d array, which is taken whole anyway, none."""
    return Rows(0, len(array) if array.ndim else 0)


def _listed(shared_vars: Any) -> list[Any]:
    variables = list(shared_vars) if isinstance(shared_vars, list | tuple) else [shared_vars]
    seen = set()
    for variable in variables:
        if not isinstance(variable, SharedVariable):
            raise TypeError(f"expected shared variables, got {variable!r}")
        if id(variable) in seen:
            raise ValueError(f"shared variable {describe(variable)} is given twice")
        seen.add(id(variable))
    return variables


def _paired(shared_vars: Any, values: Any) -> list[Any]:
    if not isinstance(shared_vars, list | tuple):
        return [values]
    if not isinstance(values, list | tuple) or len(values) != len(shared_vars):
        raise TypeError(f"values must be a list with one entry for each of the {len(shared_vars)} variables")
    return list(values)


def _check_reducible(variables: Sequence[Any], op: str) -> None:
    for variable in variables:
        check_operation(op, variable.type.dtype, f"shared variable {describe(variable)}")


def _joined(variable: Any, value: Any, nd_up: int) -> Any:
    """Return what rank 0 has joined; where it could not and made a list of copies, say why."""
    if not isinstance(value, list):
        return value
    if nd_up == 1:
        shapes = ", ".join(str(of_rank.shape) for of_rank in value)
        raise ValueError(
            f"{describe(variable)} has shapes {shapes} on the ranks, which do not stack; use nd_up=0"
        )
    return np.concatenate(value)


def _like(shared_vars: Any, results: Sequence[Any]) -> Any:
    """Return a tuple for several variables, a single result for one."""
    return tuple(results) if isinstance(shared_vars, list | tuple) else results[0]
