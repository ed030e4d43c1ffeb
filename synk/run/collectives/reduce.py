"""The collectives that reduce the values of all ranks: `AllReduce` on every rank, `Reduce` on rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import FIRST
from synk.run.collectives.collective import Collective, for_each, replace_all
from synk.run.functions.prepared import PreparedStep, ReuseConditions
from synk.run.rank.rank import Rank
from synk.transport.comm import SharedArrays
from synk.values.checks import checked_flag
from synk.values.messages import Step
from synk.values.operations import check_operation


class AllReduce(Collective[None]):
    """Combine the values of all ranks and give all of them the result.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" is the plain mean over the ranks, each of which counts once.
    nccl : bool
        Of Synkhronos; accepted and ignored.

    Raises
    ------
    CollectiveMismatch
        If shapes differ between the ranks.

    See Also
    --------
    synk.reduce : gives the result to rank 0 or to the script.
    synk.ops.all_reduce : does it inside a graph.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(1), name="v")
    >>> synk.scatter(v, [1.0, 4.0])  # a row for each rank
    >>> synk.all_reduce(v, "sum")
    >>> synk.gather(v).tolist()
    [[5.0], [5.0]]
    """

    name = "all_reduce"
    leaves_equal = True

    def __init__(self, shared_vars: Any, op: str = "avg", *, nccl: bool = True):
        checked_flag("nccl", nccl)
        super().__init__(shared_vars)
        self._op = checked_operation(op, self.variables)
        self.adds_up = op in ("sum", "avg")

    def described(self) -> str:
        return f"synk.{self.name} by {self._op!r}"

    def prepare(self, run: Owner) -> PreparedStep:
        variables = self.identities(run)
        run.memory.shared_storage.ensure(variables)
        return PreparedStep(
            AllReduceStep(variables, self._op), None, reuse=ReuseConditions(variables=variables)
        )


@dataclass(slots=True)
class AllReduceStep(Step):
    """Reduce the values of all ranks, and assign the result on every rank."""

    variables: tuple[int, ...]
    op: str

    def run(self, rank: Rank) -> None:
        first, *others = of_all = [rank.variables.shared_arrays(variable) for variable in self.variables]
        if not others:  # one variable, as in a training step: `at_once` would save nothing
            self._all_reduce(rank, self.variables[0], first)
            return
        with rank.communicator.at_once("all_reduce", self.op, of_all):
            for variable, shared in zip(self.variables, of_all, strict=True):
                self._all_reduce(rank, variable, shared)

    def _all_reduce(self, rank: Rank, variable: int, shared: SharedArrays | None) -> None:
        communicator = rank.communicator
        if shared is not None:
            communicator.all_reduce(shared.mine, self.op, shared)
            return
        rank.variables.assign(variable, communicator.all_reduce(rank.value(variable), self.op))


class Reduce(Collective[Any]):
    """Combine the values of all ranks into rank 0's, or return the result if not ``in_place``.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" is the plain mean over the ranks, each of which counts once.
    in_place : bool
        Whether rank 0 keeps the result as its value; otherwise it is returned, and no value changes.
    nccl : bool
        Of Synkhronos; accepted and ignored.

    Returns
    -------
    array, or tuple of array for a list of variables
        None if `in_place`.

    Raises
    ------
    CollectiveMismatch
        If shapes differ between the ranks.

    See Also
    --------
    synk.all_reduce : gives the result to all ranks.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(1), name="v")
    >>> synk.scatter(v, [1.0, 4.0])
    >>> synk.reduce(v, "max", in_place=False)
    array([4.])
    """

    name = "reduce"
    has_result = True
    leaves_kind = FIRST

    def __init__(self, shared_vars: Any, op: str = "avg", *, in_place: bool = True, nccl: bool = True):
        checked_flag("nccl", nccl)
        super().__init__(shared_vars)
        self._op = checked_operation(op, self.variables)
        self.has_result = not checked_flag("in_place", in_place)
        self.leaves_equal = None if self.has_result else False

    def described(self) -> str:
        return f"synk.{self.name}, which changes rank 0 only"

    def prepare(self, run: Owner) -> PreparedStep:
        variables = self.identities(run)
        run.memory.shared_storage.ensure(variables)
        step = ReduceStep(variables, self._op, in_place=not self.has_result)
        if step.in_place:
            return PreparedStep(step, None, reuse=ReuseConditions(variables=variables))
        return PreparedStep(step, lambda of_ranks: self.results(of_ranks[0]))


@dataclass(slots=True)
class ReduceStep(Step):
    """Reduce the values of all ranks on rank 0: into its variables, or as results that are returned."""

    variables: tuple[int, ...]
    op: str
    in_place: bool

    def run(self, rank: Rank) -> list[Any] | None:
        def combined(value: Any, shared: Any) -> Any:
            result = rank.communicator.reduce(value, self.op, shared=shared, in_place=self.in_place)
            return result if self.in_place or rank.rank > 0 else rank.device.to_host(result)

        kind = "reduce in place" if self.in_place else "reduce"
        results = for_each(rank, self.variables, kind, self.op, combined, shapes=True)
        if rank.rank == 0 and self.in_place:
            replace_all(rank, self.variables, results)
        return None if rank.rank > 0 or self.in_place else results


def checked_operation(op: str, variables: list[Any]) -> str:
    """Return ``op`` if it can reduce all of the variables; raise what `check_operation` raises."""
    for variable in variables:
        check_operation(op, variable.type.dtype, f"shared variable {describe(variable)}")
    return op
