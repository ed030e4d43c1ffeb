"""The collectives that join the values of all ranks: `Gather` for the script, `AllGather` on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from synk.exact.run_values import describe
from synk.run.arrays.owner import Owner
from synk.run.collectives.collective import Collective, for_each, module_of, replace_all
from synk.run.functions.prepared import PreparedStep
from synk.run.rank.rank import Rank
from synk.values.checks import checked_flag
from synk.values.messages import Step


class Gather(Collective[Any]):
    """Return the values of all ranks to the script, stacked or joined.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    nd_up : {1, 0}
        1 stacks them on a new first axis, 0 joins them along axis 0.
    nccl : bool
        Of Synkhronos; accepted and ignored.

    Returns
    -------
    array, or tuple of array for a list of variables

    Raises
    ------
    ValueError
        If shapes differ between the ranks and ``nd_up`` is 1.

    See Also
    --------
    synk.all_gather : gives them to all ranks.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(1), name="v")
    >>> synk.scatter(v, [1.0, 2.0])
    >>> synk.gather(v).tolist(), synk.gather(v, nd_up=0).tolist()
    ([[1.0], [2.0]], [1.0, 2.0])
    """

    name = "gather"
    has_result = True

    def __init__(self, shared_vars: Any, nd_up: int = 1, *, nccl: bool = True):
        checked_flag("nccl", nccl)
        if nd_up not in (0, 1):
            raise ValueError(f"nd_up={nd_up!r} is neither 0 (join along axis 0) nor 1 (stack on a new axis)")
        super().__init__(shared_vars)
        self._nd_up = nd_up
        if nd_up == 0:
            self.check_rows("axis to join along; use nd_up=1")

    def prepare(self, run: Owner) -> PreparedStep:
        variables = self.identities(run)
        run.memory.shared_storage.ensure(variables, alike=False)
        return PreparedStep(GatherStep(variables, self._nd_up), self._finish)

    def _finish(self, of_ranks: Sequence[Any]) -> list[Any]:
        gathered = zip(self.variables, of_ranks[0], strict=True)  # rank 0 has joined them
        return self.results([self._joined(variable, value) for variable, value in gathered])

    def _joined(self, variable: Any, value: Any) -> Any:
        """Return the value as rank 0 has joined it, or join the copies that it sent because shapes differ.

        Raises ValueError if values of different shapes are to be stacked.
        """
        if not isinstance(value, list):
            return value
        if self._nd_up == 1:
            shapes = ", ".join(str(of_rank.shape) for of_rank in value)
            raise ValueError(
                f"{describe(variable)} has shapes {shapes} on the ranks, which do not stack; use nd_up=0"
            )
        return np.concatenate(value)


@dataclass(slots=True)
class GatherStep(Step):
    """Join the values of all ranks on rank 0: along axis 0, or stacked on a new axis."""

    variables: tuple[int, ...]
    nd_up: int

    def run(self, rank: Rank) -> list[Any] | None:
        read = partial(joined_or_copied, stacked=self.nd_up == 1, to_host=rank.device.to_host)

        def gathered(value: Any, shared: Any) -> Any:
            return rank.communicator.gather(value, shared=shared, read=read)

        results = for_each(rank, self.variables, "gather", "sum", gathered)
        return results if rank.rank == 0 else None


def joined_or_copied(arrays: Sequence[Any], stacked: bool, to_host: Callable[[Any], Any]) -> Any:
    """Return arrays joined along axis 0, or stacked on a new axis; if shapes do not fit, a list of copies.

    The arrays are brought to the host first, where memory is less scarce than on a device.
    """
    arrays = [to_host(array) for array in arrays]
    start = 0 if stacked else 1
    if any(array.shape[start:] != arrays[0].shape[start:] for array in arrays[1:]):
        return [array.copy() for array in arrays]
    return np.stack(arrays) if stacked else np.concatenate(arrays)


class AllGather(Collective[None]):
    """Give all ranks the values of all ranks, joined along axis 0.

    Parameters
    ----------
    shared_vars : shared variable, or list of them
    nccl : bool
        Of Synkhronos; accepted and ignored.

    See Also
    --------
    synk.gather : gives them to the script only.
    synk.ops.all_gather : does it inside a graph.

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(1), name="v")
    >>> synk.scatter(v, [1.0, 2.0, 3.0])
    >>> synk.all_gather(v)
    >>> synk.get_value(1, v).tolist()
    [1.0, 2.0, 3.0]
    """

    name = "all_gather"
    leaves_equal = True

    def __init__(self, shared_vars: Any, *, nccl: bool = True):
        checked_flag("nccl", nccl)
        super().__init__(shared_vars)
        self.check_rows("axis to join along")

    def prepare(self, run: Owner) -> PreparedStep:
        self.check_free_rows(run)
        variables = self.identities(run)
        run.memory.shared_storage.ensure(variables, alike=False)

        def finish(of_ranks: Sequence[Any]) -> list[Any]:
            for variable in variables:
                run.memory.shared_storage.note_reshaped(variable)
            return []

        return PreparedStep(AllGatherStep(variables), finish, variables)


@dataclass(slots=True)
class AllGatherStep(Step):
    """Join the values of all ranks along axis 0, and assign the result on every rank."""

    variables: tuple[int, ...]

    def run(self, rank: Rank) -> None:
        def joined(value: Any, shared: Any) -> Any:
            return rank.communicator.all_gather(value, shared, module_of(value, rank).concatenate)

        results = for_each(rank, self.variables, "all_gather", "sum", joined)
        replace_all(rank, self.variables, results)
