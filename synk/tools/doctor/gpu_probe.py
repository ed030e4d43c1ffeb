"""A script that asks the NVIDIA driver, CuPy, NCCL and cuDNN for their versions, in its own process.

CUDA does not survive a fork once it is initialised, so this never runs in a process that may fork workers.

    python gpu_probe.py -> gpu/device/driver.py, CuPy, gpu/kernels/cudnn/find_cudnn.py -> one line of JSON
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

# These scripts are run by path: to import their packages would import PyTensor, which may be missing.
SYNK = Path(__file__).parents[2]
DRIVER = SYNK / "gpu" / "device" / "driver.py"
CUDNN = SYNK / "gpu" / "kernels" / "cudnn" / "find_cudnn.py"


def driver() -> dict[str, Any]:
    """Return the version of CUDA that the driver supports, and its GPUs."""
    facts = runpy.run_path(str(DRIVER))["look"]()
    if "missing" in facts:
        return {}
    if "error" in facts:
        return {"driver": facts["version"], "error": facts["error"], "error_name": facts["error_name"]}
    return {"driver": facts["version"], "gpus": [gpu["name"] for gpu in facts["gpus"]]}


def cupy() -> dict[str, Any]:
    """Return CuPy's version, the version of its CUDA, and the number of GPUs that it finds."""
    import cupy

    facts: dict[str, Any] = {"version": cupy.__version__}
    try:
        facts["cuda"] = cupy.cuda.runtime.runtimeGetVersion()
        facts["gpus"] = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        facts["error"] = f"{type(error).__name__}: {error}"
    return facts


def nccl() -> dict[str, Any]:
    """Return the version of the NCCL that CuPy finds."""
    from cupy.cuda import nccl

    return {"version": nccl.get_version()} if getattr(nccl, "available", True) else {"error": "not built in"}


def facts_of(library: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call ``library``; return its facts, or the error; an empty dict if CuPy is not installed."""
    try:
        return library()
    except ModuleNotFoundError as error:
        return {} if error.name == "cupy" else {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def cudnn() -> dict[str, Any]:
    """Return the version of cuDNN that its front end finds."""
    found = runpy.run_path(str(CUDNN))["find"]()
    if found.module is None:
        return {"error": found.reason} if found.installed else {}
    return {"version": found.module.backend_version()}


if __name__ == "__main__":
    print(json.dumps({"driver": driver(), "cupy": facts_of(cupy), "nccl": facts_of(nccl), "cudnn": cudnn()}))
