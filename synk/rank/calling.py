"""Call compiled functions of PyTensor so that what they hold and return is no memory that others share.

    Program -> called(compiled, arguments) -> values
            -> called_on_host, in a mode that the function was given

Imports NumPy and PyTensor.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.link.utils import raise_with_op


def called(compiled: Any, arguments: Sequence[Any]) -> Any:
    """Call a compiled function, and let it keep no argument where it raises: they hold shared memory."""
    try:
        return compiled(*arguments)
    except BaseException as error:
        break_cycle(error)
        for container in compiled.input_storage[: len(arguments)]:
            container.storage[0] = None
        raise


def called_on_host(compiled: Any, arguments: Sequence[Any], to_host: Callable[[Any], Any]) -> Any:
    """Call a compiled function that computes with NumPy, whatever device the others compute on.

    Parameters
    ----------
    compiled : Function
    arguments : sequence
    to_host : callable
        As of `Device`: other functions, and collectives, may have left shared variables on a device.
    """
    shared = compiled.input_storage[len(arguments) :]
    for container in shared:
        container.storage[0] = to_host(container.storage[0])
    old = [container.storage[0] for container in shared if isinstance(container.storage[0], np.ndarray)]
    values = called(compiled, arguments)

    def own(value: Any) -> Any:
        # Of a variable that it updates, PyTensor returns the old value as it is: perhaps the variable's home,
        # to which the next collective writes.
        lent = isinstance(value, np.ndarray) and any(np.may_share_memory(value, array) for array in old)
        return value.copy() if lent else value

    return [own(value) for value in values]


def break_cycle(error: BaseException) -> None:
    """Clear PyTensor's frame that refers to the error: else all frames of the call live on for long."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is raise_with_op.__code__:
            frame.clear()
