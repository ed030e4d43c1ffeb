"""Destinations: implementations that write their result where the caller wants it.

``implementation(*inputs, out=array)`` writes to ``array``, which has the declared dtype, the shape of the
result and C order, and returns it; the bits are those of the call without ``out``. Of several outputs,
``out`` is a tuple, with None for those that are to be new. An entry takes part in three ways:

    takes_out    marks an implementation that does so
    deliver      is how such an implementation ends, where it has a result that is to be copied
    accepts_out  tells who does: what is marked, and the array module's own ufuncs, ``dot`` and ``matmul``
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np


def takes_out(function: Callable) -> Callable:
    """Mark ``function`` as one that accepts ``out=``."""
    function.takes_out = True  # type: ignore[attr-defined]
    return function


def accepts_out(function: Any, xp: Any = np) -> bool:
    """Tell whether ``function``, or what it is a ``partial`` of, accepts ``out=``."""
    if isinstance(function, partial):
        function = function.func
    # Other array modules have a ufunc class of their own, of the same name.
    is_ufunc = type(function).__name__ == np.ufunc.__name__
    return is_ufunc or hasattr(function, "takes_out") or function in (xp.dot, xp.matmul)


def deliver(value: Any, dtype: Any, out: Any = None) -> Any:
    """Return ``value``, which is fresh, as ``dtype``, or write it to ``out``."""
    if out is None:
        return value.astype(dtype, copy=False)
    out[...] = value
    return out
