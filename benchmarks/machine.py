"""Hold the numeric libraries to one thread, and say in one line what runs here.

Import it before NumPy, PyTensor and torch: they read the environment when they are loaded.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

PACKAGES = ("synk", "pytensor", "numpy", "numba", "torch")


def describe() -> str:
    """Return processor, cores, load, Python and the versions of what is measured."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    versions = ", ".join(f"{package} {installed(package)}" for package in PACKAGES)
    return f"{processor()}, {cores} cores, load {load:.1f}; Python {platform.python_version()}, {versions}"


def processor() -> str:
    """Return the model of the processor, as Linux names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def installed(package: str) -> str:
    """Return the version of a package, or a dash."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"
