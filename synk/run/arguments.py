"""What `fork` was given, checked before anything is started.

Imports ``device``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synk.device.cpu import count_cores


def checked_size(n_parallel: Any, device: Any, threads: Any) -> tuple[int, int]:
    """Return the number of ranks, and of the threads that each computes with.

    Raises
    ------
    TypeError, ValueError
        Naming the argument.
    """
    if device not in (None, "cpu"):
        raise ValueError(f"device={device!r} is not available; this version computes on 'cpu'")
    for name, value in (("n_parallel", n_parallel), ("threads", threads)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is not an integer")
        if value < 1:
            raise ValueError(f"{name}={value} is less than 1")
    n_ranks = count_cores() if n_parallel is None else n_parallel
    return n_ranks, threads or max(1, count_cores() // n_ranks)


def checked_timeout(seconds: Any) -> float | None:
    """Return a number of seconds, or None for no deadline.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or not positive.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise TypeError(f"timeout={seconds!r} is not a number of seconds")
    if not seconds > 0:
        raise ValueError(f"timeout={seconds} is not positive; pass None for no deadline")
    return float(seconds)
