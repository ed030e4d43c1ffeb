"""The machine in a report: its GPU, and versions of all that takes part.

facts -> a child process that uses CUDA -> dict of str; without a GPU "missing" says why, "device" nothing
"""

import json
import os
import platform
import subprocess
import sys

LOOK = """
import json
import cupy
runtime = cupy.cuda.runtime
properties = runtime.getDeviceProperties(0)
assert cupy.arange(3).sum().get() == 3
major, minor = properties["major"], properties["minor"]
print(json.dumps({
    "device": f"{properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB",
    "compute capability": f"{major}.{minor}",
    "GPUs": str(runtime.getDeviceCount()),
    "CUDA of the driver": str(runtime.driverGetVersion()),
    "CUDA run time": str(runtime.runtimeGetVersion()),
}))
"""
VERSIONS = {
    "CuPy": "import cupy; print(cupy.__version__)",
    "NCCL": "from cupy.cuda import nccl; print(nccl.get_version())",
    "ranks that share a GPU": """
from synk.gpu.comm.nccl_library import connection, import_nccl
nccl = import_nccl()
meet = connection([0, 0], nccl and nccl.get_version())
print({"nccl": "meet through NCCL", "staged": "meet by way of the host: that takes NCCL 2.30"}[meet])
""",
    "cuDNN": """
from synk.gpu.kernels.cudnn import available, reason
print(__import__("cudnn").backend_version() if available() else f"not used: {reason()}")
""",
    "cuDNN of torch": "import torch; print(torch.backends.cudnn.version())",
    "torch": "import torch; print(torch.__version__)",
    "PyTensor": "import pytensor; print(pytensor.__version__)",
    "NumPy": "import numpy; print(numpy.__version__)",
    "synk": "import synk; print(synk.__version__)",
}
SECONDS = 60


def facts():
    """Return the facts that are there, in words."""
    said, error = ask(LOOK)
    found = json.loads(said) if said else {"device": ""}
    known = {"missing": error, **found}
    if found["device"]:
        known["driver"] = driver()
    running = {name: subprocess.Popen(command(code), **PIPES) for name, code in VERSIONS.items()}
    for name, process in running.items():
        known[name] = answer(process)[0] or "none"
    cores = f"{len(os.sched_getaffinity(0))} cores"
    shared = os.statvfs("/dev/shm")
    return known | {
        "Python": platform.python_version(),
        "host": f"{cores}, {platform.machine()}",
        "shared memory": f"{shared.f_bavail * shared.f_frsize / 2**30:.1f} GiB free",
    }


def driver():
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS).stdout.split("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return "not told"


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def command(code):
    return [sys.executable, "-W", "ignore", "-c", code]


def ask(code):
    return answer(subprocess.Popen(command(code), **PIPES))


def answer(process):
    """Return the output of a process, or the reason why there is none."""
    try:
        said, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "", f"no answer within {SECONDS} s"
    if process.returncode:
        return "", (errors.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return said.strip(), ""
