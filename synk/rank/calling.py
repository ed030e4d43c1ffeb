"""Call compiled functions of PyTensor so that a failed call holds no memory that others share.

    Program -> called(compiled, arguments) -> values

Imports PyTensor.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

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


def break_cycle(error: BaseException) -> None:
    """Clear PyTensor's frame that refers to the error: else all frames of the call live on for long."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is raise_with_op.__code__:
            frame.clear()
