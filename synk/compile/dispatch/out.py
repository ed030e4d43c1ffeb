"""Destinations: implementations that write their result where the caller wants it.

``implementation(*inputs, out=array)`` writes to ``array``, which has the declared dtype, the shape of the
result and C order, and returns it; the bits are those of the call without ``out``. Ufuncs, ``dot`` and
``matmul`` of an array module do so; a function says so by the mark that is set here.
"""

from collections.abc import Callable
from typing import Any


def takes_out(function: Callable) -> Callable:
    """Mark ``function`` as one that accepts ``out=``."""
    function.takes_out = True  # type: ignore[attr-defined]
    return function


def deliver(value: Any, dtype: Any, out: Any = None) -> Any:
    """Return ``value``, which is fresh, as ``dtype``, or write it to ``out``."""
    if out is None:
        return value.astype(dtype, copy=False)
    out[...] = value
    return out
