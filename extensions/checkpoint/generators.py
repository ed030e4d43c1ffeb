"""Make random generators from states in a checkpoint, a file that need not be trusted.

state, as JSON has it -> generator_of -> generator
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# By kind of generator: where its state has the position in its buffer, and the largest valid position.
POSITIONS: dict[str, tuple[tuple[str, ...], int]] = {
    "MT19937": (("state", "pos"), 624),
    "Philox": (("buffer_pos",), 4),
}


def generator_of(state: Mapping[str, Any], like: Any) -> np.random.Generator:
    """Return a generator in the state that a bit generator gave, with lists in place of arrays.

    Bit generators accept any state: with a position outside of their buffer they read foreign memory at the
    next draw, and with a state that never changes some draws never end. So a state is checked before and
    after it is set. Raise ValueError, TypeError, KeyError, IndexError or OverflowError if no bit generator of
    the kind of ``like`` can have the state.
    """
    for kind, (path, last) in POSITIONS.items():
        if isinstance(like, getattr(np.random, kind)):
            position: Any = state
            for key in path:
                position = position[key]
            if type(position) is not int or not 0 <= position <= last:
                raise ValueError(f"{path[-1]} is {position!r}, not a number from 0 to {last}")
    bits = type(like)()
    bits.state = state
    if _without_arrays(bits.state) != _without_arrays(state) or state.get("has_uint32", 0) not in (0, 1):
        raise ValueError("it has other entries than a generator gives")
    if isinstance(like, np.random.MT19937) and not any(state["state"]["key"]):
        raise ValueError("its key is zero, from which every number is the same")
    if isinstance(like, np.random.PCG64 | np.random.PCG64DXSM) and state["state"]["inc"] % 2 == 0:
        raise ValueError("its increment is even")
    return np.random.Generator(bits)


def _without_arrays(state: Any) -> Any:
    """Return a state with lists in place of arrays."""
    if isinstance(state, Mapping):
        return {key: _without_arrays(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
