"""The ways of a value from one side to the other, and how many of them a program takes.

    host (NumPy) -- to_device --> device (arrays of another module) -- to_host --> host

Programs take these where ``place`` says so. Imports NumPy only.
"""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


class Transfers(NamedTuple):
    """Arrays that cross in one call of a program, at most."""

    uploads: int
    downloads: int


NO_TRANSFERS = Transfers(0, 0)


def to_host(value: Any, xp: ModuleType) -> Any:
    """Return ``value`` as a NumPy array; one that is on the host is returned as it is."""
    return value if is_on_host(value) else xp.asnumpy(value)


def to_device(value: Any, xp: ModuleType) -> Any:
    """Return ``value`` as an array of ``xp``; one that is on the device is returned as it is."""
    if not is_on_host(value):
        return value
    if value.size == 1:
        # The number travels with the launch that fills: nothing is copied.
        return xp.full(value.shape, value.reshape(())[()], value.dtype)
    return xp.asarray(value)


def to_scalar(value: Any, xp: ModuleType) -> Any:
    """Return an array of one element as a NumPy scalar, which a launch takes along."""
    return to_host(value, xp).reshape(())[()]


def is_on_host(value: Any) -> bool:
    """Tell whether ``value`` is a NumPy array or scalar."""
    return isinstance(value, np.ndarray | np.generic)


CROSSINGS = {"host": to_host, "device": to_device, "scalar": to_scalar}
