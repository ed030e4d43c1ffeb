"""The operations that combine values of slices and ranks: which dtypes each takes, and its identity.

"avg", "sum", "prod", "min" and "max" combine arrays of one shape, "gather" joins rows, None takes one value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPERATIONS = ("avg", "sum", "prod", "min", "max")
MODES = (*OPERATIONS, "gather", None)
IGNORED_PREFIX = "c_"  # in scripts for Synkhronos it asks for the host path; here it is accepted and ignored

UFUNCS: dict[str, np.ufunc] = {
    "avg": np.add,
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def check_operation(op: Any, dtype: str, what: str) -> str:
    """Return ``op`` if it can reduce arrays of ``dtype``; errors call the reduced value ``what``.

    Raises ValueError if ``op`` is unknown, and TypeError if it has no meaning for ``dtype``: "avg" of
    integers, "avg" or "sum" of booleans, "min" or "max" of complex numbers.
    """
    if op not in OPERATIONS:
        raise ValueError(f"{op!r} is not a reduce operation; use one of {', '.join(OPERATIONS)}")
    kind = np.dtype(dtype).kind
    if kind == "b" and op in ("avg", "sum"):
        raise TypeError(f'{what} is boolean, which has no "{op}"; cast it, or use "min", "max" or "gather"')
    if kind in "iu" and op == "avg":
        raise TypeError(
            f'{what} has dtype {dtype}, which has no "avg"; cast it to float, or name another operation'
        )
    if kind == "c" and op in ("min", "max"):
        raise TypeError(f'{what} is complex, which has no "{op}"')
    return op


def check_mode(mode: Any, dtype: str | None, what: str) -> str | None:
    """Return the mode of an output or update, one of `MODES`, without the prefix "c_", which is ignored.

    ``dtype`` is None if the output or update is not an array; then None is the only mode it can have.
    ``what`` names it in errors, which are those of `check_operation`.
    """
    plain = mode.removeprefix(IGNORED_PREFIX) if isinstance(mode, str) else mode
    if plain is None:
        return None
    if plain not in MODES:
        names = ", ".join(repr(name) for name in MODES)
        raise ValueError(f"{mode!r} is not a reduce operation of {what}; use one of {names}")
    if dtype is None:
        raise TypeError(f"{what} is not an array, so it cannot be reduced by {mode!r}; use None")
    return plain if plain == "gather" else check_operation(plain, dtype, what)


def accumulating_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype in which values of ``dtype`` are accumulated: float32 for float16, else the same."""
    return np.dtype("float32") if np.dtype(dtype) == np.float16 else np.dtype(dtype)


def identity(op: str | None, like: Any, xp: Any = np) -> Any | None:
    """Return the new value of an updated variable in a call without rows, or None to keep the old value.

    It is the identity of ``op``, such as 0 for "sum". "avg" and None have none, and keep the old value.
    ``like`` is that value, of which shape and dtype are taken, and ``xp`` its array module.
    """
    if op == "sum":
        return xp.zeros_like(like)
    if op == "prod":
        return xp.ones_like(like)
    if op in ("min", "max"):
        return xp.full_like(like, like.dtype.type(_extreme(like.dtype, largest=op == "min")))
    if op == "gather":
        return like[:0].copy()
    return None


def _extreme(dtype: np.dtype[Any], largest: bool) -> Any:
    """Return the largest, or the smallest, number of a dtype: an infinity if it has one."""
    if dtype.kind == "b":
        return largest
    if dtype.kind == "f":
        return np.inf if largest else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if largest else limits.min
