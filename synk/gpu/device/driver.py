"""A script that asks NVIDIA's driver which GPUs there are, and runs in a short-lived process.

CUDA does not survive a fork once it is initialised, so this never runs in a process that may fork workers.
The script inherits the environment, so ``CUDA_VISIBLE_DEVICES`` hides the same GPUs from it as from the
workers.

    python driver.py -> look -> one line of JSON -> device.probe, doctor
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

LIBRARY = "libcuda.so.1"


def look(library: str = LIBRARY) -> dict[str, Any]:
    """Return the driver's version and GPUs, or why there are none.

    Returns
    -------
    dict
        ``missing``: why there is no driver, and nothing else. Or ``version`` (12040 for CUDA 12.4) with
        either ``error`` (the driver's number) and ``error_name``, or ``gpus``: a list of ``name``, ``uuid``
        and ``nbytes`` (of memory) each, in the driver's order.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError as refusal:
        return {"missing": str(refusal)}
    error = cuda.cuInit(0)
    facts: dict[str, Any] = {"version": _number(cuda.cuDriverGetVersion)[1]}
    count = 0
    if not error:
        error, count = _number(cuda.cuDeviceGetCount)
    if error:
        return facts | {"error": error, "error_name": _name_of_error(cuda, error)}
    return facts | {"gpus": [_describe(cuda, number) for number in range(count)]}


def _number(ask: Callable[..., int]) -> tuple[int, int]:
    """Call a driver's function that writes an integer; return its error code and the integer."""
    answer = ctypes.c_int()
    return ask(ctypes.byref(answer)), answer.value


def _name_of_error(cuda: ctypes.CDLL, error: int) -> str:
    name = ctypes.c_char_p()
    ask = getattr(cuda, "cuGetErrorName", None)
    known = ask is not None and ask(error, ctypes.byref(name)) == 0 and name.value
    return name.value.decode(errors="replace") if known and name.value else ""


def _describe(cuda: ctypes.CDLL, number: int) -> dict[str, Any]:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(name, len(name), device)
    identity, nbytes = (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
    # The second versions return the identity of a MIG instance itself, and sizes beyond 4 GB.
    _ask_if_known(cuda, ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"), ctypes.byref(identity), device)
    _ask_if_known(cuda, ("cuDeviceTotalMem_v2",), ctypes.byref(nbytes), device)
    text = bytes(identity).hex()
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])) if any(identity) else ""
    return {"name": name.value.decode(errors="replace"), "uuid": uuid, "nbytes": nbytes.value}


def _ask_if_known(cuda: ctypes.CDLL, names: tuple[str, ...], *arguments: Any) -> None:
    """Call the first of the functions ``names`` that this driver has, if it has any."""
    for name in names:
        if hasattr(cuda, name):
            getattr(cuda, name)(*arguments)
            return


if __name__ == "__main__":
    print(json.dumps(look()))
