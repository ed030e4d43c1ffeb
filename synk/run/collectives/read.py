"""Collectives that read shared variables of single ranks: values, shapes, and whether values are finite."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synk.exact.run_values import copy_of, describe
from synk.run.arrays.owner import Owner
from synk.run.collectives.collective import Collective, checked_rank, module_of
from synk.run.functions.prepared import PreparedStep, ReuseConditions
from synk.run.rank.rank import Rank
from synk.values.errors import NonFinite
from synk.values.messages import Step


class GetValue(Collective[Any]):
    """Return a copy of the value on one rank.

    Parameters
    ----------
    rank : int
        From 0 to ``n_ranks() - 1``.
    shared_vars : shared variable, or list of them

    Returns
    -------
    value, or tuple of values for a list of variables

    Raises
    ------
    TypeError, ValueError
        If there is no such rank.

    See Also
    --------
    synk.gather : returns the values of all ranks.
    synk.set_value : sets the value on one rank.

    Examples
    --------
    >>> w = pytensor.shared(np.ones(2), name="w")
    >>> synk.get_value(1, w)
    array([1., 1.])
    """

    name = "get_value"
    has_result = True
    takes_arrays_only = False

    def __init__(self, rank: int, shared_vars: Any):
        super().__init__(shared_vars)
        self._rank = rank

    def prepare(self, run: Owner) -> PreparedStep:
        rank = checked_rank(self._rank, run)
        variables = self.identities(run)
        read = tuple(
            rank > 0 and run.memory.shared_storage.is_visible_to_master(variable) for variable in variables
        )

        def finish(of_ranks: Sequence[Any]) -> list[Any]:
            # Rank 0 has read values that are in shared memory; the asked rank has sent the others.
            both = zip(of_ranks[0], of_ranks[rank], strict=True)
            return self.results([sent if read is None else read for read, sent in both])

        return PreparedStep(FetchStep(variables, rank, read), finish)


@dataclass(slots=True)
class FetchStep(Step):
    """Send copies of one rank's values to the master."""

    variables: tuple[int, ...]
    rank: int
    read: tuple[bool, ...] = ()  # by variable: whether rank 0 reads it in shared memory, in a gather of all

    def run(self, rank: Rank) -> list[Any]:
        asked = self.rank == rank.rank
        read = [variable for variable, is_read in zip(self.variables, self.read, strict=False) if is_read]
        shared = {variable: rank.variables.shared_arrays(variable) for variable in read}
        with rank.communicator.at_once("gather", "sum", list(shared.values()), shapes=False):
            gathered = {
                variable: rank.communicator.gather(
                    rank.value(variable), shared=known, read=lambda arrays: arrays[0].copy(), only=self.rank
                )
                for variable, known in shared.items()
            }
        # Copied although it is sent: replies are sent after all steps, and later steps may write to the
        # value.
        return [
            gathered[variable] if variable in shared else _own_copy(rank, variable) if asked else None
            for variable in self.variables
        ]


@dataclass(slots=True)
class CommitStep(Step):
    """Send the master rank 0's values, and those values of other ranks that differ from rank 0's.

    A rank sends None for a value that equals rank 0's. Most do, as parameters are equal on all ranks: digests
    are compared first, so that not every rank sends all values.
    """

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> list[Any]:
        if not self.variables:
            return []
        own = np.array([digest(rank.variables.on_host(one), rank.rank) for one in self.variables])
        first = rank.communicator.on_host.broadcast(own.copy())
        differ = np.any(own != first, axis=1) | (rank.rank == 0)
        return [
            _own_copy(rank, variable) if sent else None
            for variable, sent in zip(self.variables, differ, strict=True)
        ]


def digest(value: Any, rank: int) -> NDArray[np.uint8]:
    """Return a hash of a value: equal for equal arrays; for other values, different on each rank."""
    said = hashlib.sha256(f"{rank} {type(value)}".encode())
    if isinstance(value, np.ndarray):
        said = hashlib.sha256(f"{value.dtype.str} {value.shape}".encode())
        said.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return np.frombuffer(said.digest(), np.uint8)


def _own_copy(rank: Rank, variable: int) -> Any:
    """Return a copy, on the host, of a rank's value; from a device, bringing it to the host has copied it."""
    value = rank.variables.on_host(variable)
    return copy_of(value) if value is rank.variables.value(variable) else value


class GetShapes(Collective[Any]):
    """Return the shape on each rank, as a list of tuples.

    Parameters
    ----------
    shared_vars : shared variable, or list of them

    Returns
    -------
    list of tuple, or tuple of lists for a list of variables
        In rank order.

    See Also
    --------
    synk.get_lengths : tells the rows only.

    Examples
    --------
    >>> table = pytensor.shared(np.zeros((2, 2)), name="table")
    >>> synk.scatter(table, np.zeros((3, 2)))
    >>> synk.get_shapes(table)
    [(2, 2), (1, 2)]
    """

    name = "get_shapes"
    has_result = True

    def prepare(self, run: Owner) -> PreparedStep:
        return PreparedStep(ShapesStep(self.identities(run)), self._finish)

    def _finish(self, of_ranks: Sequence[Any]) -> list[Any]:
        return self.results(
            [[self.part(shape) for shape in shapes] for shapes in zip(*of_ranks, strict=True)]
        )

    def part(self, shape: tuple[int, ...]) -> Any:
        """Return the part of one rank's shape that the script gets: here all of it."""
        return shape


class GetLengths(GetShapes):
    """Return the number of rows on each rank, as a list.

    Parameters
    ----------
    shared_vars : shared variable, or list of them

    Returns
    -------
    list of int, or tuple of lists for a list of variables
        In rank order.

    Raises
    ------
    ValueError
        If a variable is 0-d.

    See Also
    --------
    synk.get_shapes : tells the shapes.

    Examples
    --------
    >>> table = pytensor.shared(np.zeros((2, 2)), name="table")
    >>> synk.scatter(table, np.zeros((3, 2)))
    >>> synk.get_lengths(table)
    [2, 1]
    """

    name = "get_lengths"

    def __init__(self, shared_vars: Any):
        super().__init__(shared_vars)
        self.check_rows("length")

    def part(self, shape: tuple[int, ...]) -> int:
        return shape[0]


@dataclass(slots=True)
class ShapesStep(Step):
    """Send the shapes of shared variables to the master."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> list[tuple[int, ...]]:
        return [rank.variables.value(variable).shape for variable in self.variables]


class CheckFinite(Collective[None]):
    """Raise unless all values of shared variables are finite on every rank.

    In a `sequence` this stops a step before a NaN reaches the parameters::

        synk.sequence(gradient, (synk.check_finite, flat), (synk.all_reduce, flat, "sum"), update)

    Parameters
    ----------
    shared_vars : shared variable, or list of them

    Raises
    ------
    NonFinite
        The message names ranks and variables, and how many values are not finite.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(2), name="v")
    >>> synk.check_finite(v)
    >>> synk.set_value(1, v, [0.0, np.nan])
    >>> try:
    ...     synk.check_finite(v)
    ... except synk.NonFinite as error:
    ...     print(str(error).splitlines()[0])
    rank 1: synk.NonFinite: not finite on rank 1: 1 of 2 values (1 NaN) of 'v'
    """

    name = "check_finite"

    def prepare(self, run: Owner) -> PreparedStep:
        return PreparedStep(CheckFiniteStep(self.identities(run)), None, reuse=ReuseConditions())


@dataclass(slots=True)
class CheckFiniteStep(Step):
    """Raise NonFinite on a rank where a value is NaN or infinite."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        bad = []
        for variable in self.variables:
            value = rank.variables.value(variable)
            xp, to_host = module_of(value, rank), rank.device.to_host
            count = value.size - int(to_host(xp.count_nonzero(xp.isfinite(value))))
            if count:
                n_nan = int(to_host(xp.count_nonzero(xp.isnan(value))))
                said = f"{count} of {value.size} values ({n_nan} NaN)"
                bad.append(f"{said} of {describe(rank.variables[variable])}")
        if bad:
            raise NonFinite(f"not finite on rank {rank.rank}: {', '.join(bad)}")
