"""Ask the NVIDIA driver, CuPy and NCCL what there is, in a process that is not needed afterwards.

CUDA that is initialised survives no fork, so nothing here runs where a run may start.

    python gpu_probe.py -> one line of JSON

Imports the standard library only, and CuPy where it is.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any


def driver() -> dict[str, Any]:
    """Return the version of CUDA that the driver speaks, and its GPUs."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    error = cuda.cuInit(0)
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if error:
        return {"driver": version.value, "error": error}
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return {"driver": version.value, "gpus": [_name(cuda, number) for number in range(count.value)]}


def _name(cuda: ctypes.CDLL, number: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(name, len(name), device)
    return name.value.decode(errors="replace")


def cupy() -> dict[str, Any]:
    """Return CuPy's version and that of its CUDA, and the GPUs that it counts."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        return {} if error.name == "cupy" else {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    facts: dict[str, Any] = {"version": cupy.__version__}
    try:
        facts["cuda"] = cupy.cuda.runtime.runtimeGetVersion()
        facts["gpus"] = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def nccl() -> dict[str, Any]:
    """Return the version of the NCCL that CuPy finds."""
    try:
        from cupy.cuda import nccl
    except ModuleNotFoundError as error:
        return {} if error.name == "cupy" else {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"version": nccl.get_version()} if getattr(nccl, "available", True) else {"error": "not built in"}


if __name__ == "__main__":
    print(json.dumps({"driver": driver(), "cupy": cupy(), "nccl": nccl()}))
