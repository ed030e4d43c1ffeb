"""Remember how many rows shared variables have on each rank, so that the ranks are asked only once.

Function.prepare -> RowsByRank.of -> a question to the ranks, for variables that are not known yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from synk.run.arrays.variables import RankVariables


class RowsByRank:
    """The known numbers of rows of shared variables, by rank.

    ``ask(variables)`` asks all ranks, and returns shapes by rank, then by variable; ``own`` are rank 0's
    variables.
    """

    def __init__(self, own: RankVariables, ask: Callable[[tuple[int, ...]], Sequence[Sequence[Any]]]):
        self._own = own
        self._ask = ask
        self._known: dict[int, list[int]] = {}

    def of(self, variables: Sequence[int]) -> list[list[int]]:
        """Return the numbers of rows of shared variables, by variable, then by rank."""
        unknown = tuple(variable for variable in variables if variable not in self._known)
        if unknown:
            for variable, *shapes in zip(unknown, *self._ask(unknown), strict=True):
                self._known[variable] = [shape[0] for shape in shapes]
        # Rank 0's value is looked at every time, as the script may have changed it by set_value.
        return [[len(self._own.value(variable)), *self._known[variable][1:]] for variable in variables]

    def forget(self, variables: Iterable[int]) -> None:
        """Forget the rows of these variables, whose shapes are about to change."""
        if self._known:
            for variable in variables:
                self._known.pop(variable, None)

    def clear(self) -> None:
        """Forget all lengths."""
        self._known.clear()
