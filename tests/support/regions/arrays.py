"""Random arrays: plain ones, those with special values, and those that lie in memory in other ways."""

from collections.abc import Callable
from typing import Any

import numpy as np

FLOATS = ("float64", "float32")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 1e-310, 1e-40, 3e9, -3e9]


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str) -> Any:
    """Return an array of "whole" numbers, of "any" numbers, or of "special" ones."""
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in FLOATS:
        if kind == "whole":
            return np.asarray(rng.integers(-3, 4, shape)).astype(dtype)
        values = np.asarray(rng.standard_normal(shape))
        if kind == "special":
            values = np.where(rng.random(shape) < 0.5, values, rng.choice(SPECIAL, shape))
        with np.errstate(all="ignore"):
            return values.astype(dtype)
    ends = np.iinfo(dtype)
    values = rng.integers(max(-5, ends.min), 6, shape)
    if kind == "special":
        extreme = rng.choice([ends.min, ends.max], shape).astype(dtype)
        return np.where(rng.random(shape) < 0.7, values.astype(dtype), extreme)
    return np.asarray(values).astype(dtype)


def unaligned(array: Any) -> Any:
    """Return an array of which no element lies where its type asks for."""
    room = np.zeros(array.nbytes + 1, "uint8")
    moved = room[1 : 1 + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def read_only(array: Any) -> Any:
    array = np.array(array)
    array.flags.writeable = False
    return array


def spread(array: Any) -> Any:
    """Return an array with room between its elements."""
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


LAYOUTS: list[Callable[[Any], Any]] = [
    np.array,
    lambda a: np.array(a, order="F"),
    lambda a: np.ascontiguousarray(a[::-1])[::-1] if a.ndim else a,
    lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1] if a.ndim else a,
    spread,
    unaligned,
    read_only,
    lambda a: np.broadcast_to(a[:1], a.shape) if a.ndim and len(a) else a,
]
