"""Keep the number of rows that shared variables have on every rank.

Function.prepare, get_lengths -> RowsByRank.of -> the ranks, for what is not known
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from synk.run.arrays.variables import RankVariables


class RowsByRank:
    """The rows of shared variables by rank, as far as they are known.

    ``ask(variables)`` returns all shapes by rank, then by variable; ``own`` are rank 0's variables.
    """

    def __init__(self, own: RankVariables, ask: Callable[[tuple[int, ...]], Sequence[Sequence[Any]]]):
        self._own = own
        self._ask = ask
        self._known: dict[int, list[int]] = {}

    def of(self, variables: Sequence[int]) -> list[list[int]]:
        """Return the rows of shared variables, by variable, then by rank."""
        unknown = tuple(variable for variable in variables if variable not in self._known)
        if unknown:
            for variable, *shapes in zip(unknown, *self._ask(unknown), strict=True):
                self._known[variable] = [shape[0] for shape in shapes]
        # The master's own may have been changed by set_value since.
        return [[len(self._own.value(variable)), *self._known[variable][1:]] for variable in variables]

    def forget(self, variables: Iterable[int]) -> None:
        """Note that the shapes of these variables are about to change."""
        if self._known:
            for variable in variables:
                self._known.pop(variable, None)

    def clear(self) -> None:
        """Forget all lengths."""
        self._known.clear()
