"""The collectives after which each rank has a part of the rows: `ReduceScatter` and `AllToAll`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synk.run.arrays.owner import Owner
from synk.run.arrays.per_rank import ROWS
from synk.run.collectives.collective import Collective, for_each, replace_all
from synk.run.collectives.reduce import checked_operation
from synk.run.functions.prepared import PreparedStep
from synk.run.rank.rank import Rank
from synk.values.messages import Step


class Exchange(Collective[None]):
    """A collective after which each rank has a part of the rows; not available on GPUs yet."""

    leaves_equal = False
    leaves_kind = ROWS

    def __init__(self, shared_vars: Any):
        super().__init__(shared_vars)
        self.check_rows("rows to divide among the ranks")

    def prepare_exchange(self, run: Owner, alike: bool) -> tuple[int, ...]:
        """Check the variables against the run, put them into shared memory, and return their identities.

        ``alike`` tells whether all ranks' values must have one shape.
        """
        if not run.on_host:
            raise NotImplementedError(
                f"synk.{self.name} is not available on GPUs yet; call synk.all_reduce or synk.all_gather, "
                "and let each rank use its part of the result"
            )
        self.check_free_rows(run)
        variables = self.identities(run)
        run.memory.shared_storage.ensure(variables, alike)
        return variables


class ReduceScatter(Exchange):
    """Combine the values of all ranks and give each rank its part of the result's rows.

    Parts are those of `numpy.array_split`, in rank order: they differ by one row at most. On CPUs only.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    op : {"avg", "sum", "prod", "min", "max"}
        "avg" is the plain mean over the ranks, each of which counts once.

    Raises
    ------
    CollectiveMismatch
        If shapes differ between the ranks.
    TypeError
        If the type of a variable fixes its number of rows.

    See Also
    --------
    synk.all_reduce : gives each rank the whole result.

    Examples
    --------
    >>> table = pytensor.shared(np.arange(6.0).reshape(3, 2), name="table")
    >>> synk.reduce_scatter(table, "sum")
    >>> synk.gather(table, nd_up=0).tolist()  # rank 0 has two of these rows, rank 1 has one
    [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]
    """

    name = "reduce_scatter"

    def __init__(self, shared_vars: Any, op: str = "avg"):
        super().__init__(shared_vars)
        self._op = checked_operation(op, self.variables)

    def prepare(self, run: Owner) -> PreparedStep:
        variables = self.prepare_exchange(run, alike=True)
        return PreparedStep(ReduceScatterStep(variables, self._op), None, variables)


@dataclass(slots=True)
class ReduceScatterStep(Step):
    """Reduce the values of all ranks; each rank computes and keeps its part of the result's rows."""

    variables: tuple[int, ...]
    op: str

    def run(self, rank: Rank) -> None:
        def part(value: Any, shared: Any) -> Any:
            return rank.communicator.reduce_scatter(value, self.op, shared)

        parts = for_each(rank, self.variables, "reduce_scatter", self.op, part, shapes=True)
        replace_all(rank, self.variables, parts)


class AllToAll(Exchange):
    """Give each rank its part of the rows of every rank's value, joined in rank order along axis 0.

    Parts are those of `numpy.array_split`: of each value, they differ by one row at most. On CPUs only.

    Parameters
    ----------
    shared_vars : shared variable, or list of them

    Raises
    ------
    CollectiveMismatch
        If values differ between the ranks in more than their number of rows.
    TypeError
        If the type of a variable fixes its number of rows.

    See Also
    --------
    synk.all_gather : gives each rank all rows.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(2), name="v")
    >>> synk.scatter(v, [0.0, 1.0, 10.0, 11.0])
    >>> synk.all_to_all(v)
    >>> synk.get_value(0, v).tolist(), synk.get_value(1, v).tolist()
    ([0.0, 10.0], [1.0, 11.0])
    """

    name = "all_to_all"

    def prepare(self, run: Owner) -> PreparedStep:
        variables = self.prepare_exchange(run, alike=False)
        return PreparedStep(AllToAllStep(variables), None, variables)


@dataclass(slots=True)
class AllToAllStep(Step):
    """Send each rank its part of the rows of every rank's value."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        joined = for_each(rank, self.variables, "all_to_all", "sum", rank.communicator.all_to_all)
        replace_all(rank, self.variables, joined)
