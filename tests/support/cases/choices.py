"""What pieces of random graphs ask for: chances, numbers, and values that were made before."""

from collections.abc import Callable
from typing import Any

import numpy as np


class Unfit(Exception):
    """The graph has no values that a piece could be made of."""


class Choices:
    """Random choices of a graph, in an order that its seed determines.

    Attributes
    ----------
    rng : numpy Generator
    pool : list
        The values made so far, the newest last; each has a ``variable``.
    """

    lean = 1.5  # the larger, the more often a new value is chosen
    rng: np.random.Generator
    pool: list[Any]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, first: int, last: int) -> int:
        return int(self.rng.integers(first, last + 1))

    def one_of(self, choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def some(self, fits: Callable[[Any], bool] = lambda value: True) -> Any:
        """Return a value that fits, rather a new one; raise Unfit if there is none."""
        found = [value for value in self.pool if fits(value)]
        if not found:
            raise Unfit
        at = len(found) - 1 - int(len(found) * self.rng.random() ** self.lean)
        return found[max(at, 0)]

    def _of(self, fits: Callable[[Any], bool]) -> Any:
        return self.some(fits).variable


def weighted(pieces: dict[Callable[..., Any], int]) -> Callable[[int], Callable[..., Any]]:
    """Return a decorator that notes a piece in ``pieces``; twice the weight is tried twice as often."""

    def piece(weight: int) -> Callable[..., Any]:
        def register(make: Callable[..., Any]) -> Callable[..., Any]:
            pieces[make] = weight
            return make

        return register

    return piece
