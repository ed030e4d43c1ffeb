"""Pieces of random graphs, and how often each is tried."""

from collections.abc import Callable
from typing import Any

PIECES: dict[Callable[..., Any], int] = {}


class Unfit(Exception):
    """The graph has no values that a piece could be made of."""


def piece(weight: int) -> Callable[..., Any]:
    """Register a piece; of two, one with twice the weight is tried twice as often."""

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        PIECES[make] = weight
        return make

    return register
