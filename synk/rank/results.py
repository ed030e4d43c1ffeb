"""When results of functions go to the host: large ones at once, small ones when nothing is left to launch.

    program -> small_stay -> Results ... last step of a command -> on_host -> reply

To fetch a number is to wait for the GPU. Who has another program to launch launches that first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from synk.device import Device
from synk.values import messages

SMALL = 1024  # bytes of a result that need not leave the device at once


def small_stay(value: Any, device: Device) -> Any:
    """Return a result on the host, or a small one where it is."""
    return value if getattr(value, "nbytes", 0) <= SMALL else device.to_host(value)


def on_host(results: Iterable[Any], device: Device) -> tuple[Any, ...]:
    """Return the results of steps, the arrays in `Results` on the host."""
    return tuple(
        messages.Results([*map(device.to_host, result.values)], result.weight)
        if isinstance(result, messages.Results)
        else result
        for result in results
    )
