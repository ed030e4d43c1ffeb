"""Checks of the software that synk needs: Python, packages, PyTensor's settings."""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from synk.tools.doctor.finding import NOTE, PROBLEM, WARNING, Finding, grade
from synk.tools.doctor.machine import MachineFacts
from synk.values.namesake import REMEDY, is_ours, namesakes

# Settings of PyTensor that may make every function slower to build or to call, and their harmless values.
HARMLESS_SETTINGS = {
    "profile": False,
    "profile_optimizer": False,
    "optimizer_verbose": False,
    "check_stack_trace": "off",
    "compute_test_value": "off",
}

# An OpenMP runtime that does not survive a fork: a child that uses it after its parent has waits forever.
UNSAFE_RUNTIME = "libgomp"


def python(machine: MachineFacts) -> Finding:
    """Check the Python that runs this."""
    version = sys.version_info[:3]
    return grade(
        "Python",
        ".".join(map(str, version)),
        (version < (3, 11), PROBLEM, "synk needs Python 3.11 or newer: install it beside this one"),
        (not sys.platform.startswith("linux"), PROBLEM, "synk needs Linux: use a virtual machine"),
    )


def package(name: str, lowest: tuple[int, ...] = (), below: tuple[int, ...] = ()) -> Finding:
    """Check a package that synk needs in a version with ``lowest <= version < below``."""
    wanted = name
    if below:
        wanted = f"'{name}>={'.'.join(map(str, lowest))},<{'.'.join(map(str, below))}'"
    install = f"{sys.executable} -m pip install {wanted}"
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(PROBLEM, name, "not installed", install)
    reinstall = install.replace("install ", "install --force-reinstall ")
    if version is None:  # an installer has left an incomplete folder of metadata
        return Finding(PROBLEM, name, "installed without metadata that tell its version", reinstall)
    try:
        import_module(name)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        found = f"{version}, fails to import: {type(error).__name__}: {first_line}"
        return Finding(PROBLEM, name, found, f"do what it says, or {reinstall}")
    numbers = release(version)
    outside = numbers < lowest or bool(below and numbers >= below)
    return grade(name, version, (outside, PROBLEM, install))


def release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``"3.0.7.dev1"`` is (3, 0, 7)."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def package_synk(machine: MachineFacts) -> Finding:
    """Check that another project called synk has not overwritten a file of this package."""
    own = Path(__file__).parents[2] / "__init__.py"
    others = namesakes()
    return grade(
        "package synk",
        f"also another project's: {', '.join(others)}" if others else str(own.parent),
        (not is_ours(own), PROBLEM, f"{own} is another project's: {REMEDY}"),
        (bool(others), WARNING, REMEDY),
    )


def numpy(machine: MachineFacts) -> Finding:
    """Check NumPy: arrays, and the matrix products of processor cores."""
    return package("numpy")


def pytensor(machine: MachineFacts) -> Finding:
    """Check PyTensor: graphs, gradients and rewrites."""
    return package("pytensor", (3, 0), (4,))


def posix_ipc(machine: MachineFacts) -> Finding:
    """Check posix_ipc, which creates shared memory."""
    return package("posix_ipc")


def cloudpickle(machine: MachineFacts) -> Finding:
    """Check cloudpickle, by which functions and classes of the script are sent to ranks."""
    return package("cloudpickle")


def threadpoolctl(machine: MachineFacts) -> Finding:
    """Check threadpoolctl, which sets the threads of each rank's matrix products."""
    return package("threadpoolctl")


def pytensor_settings(machine: MachineFacts) -> Finding:
    """Check for settings from ``PYTENSOR_FLAGS`` or ``.pytensorrc`` that make runs slower.

    ``mode`` and ``linker`` are not among them: a run compiles in its own mode.
    """
    config = import_module("pytensor").config
    slow = {
        name: getattr(config, name, value)
        for name, value in HARMLESS_SETTINGS.items()
        if getattr(config, name, value) != value
    }
    return grade(
        "PyTensor's settings",
        ", ".join(f"{name}={value}" for name, value in slow.items()) or "none that slows runs",
        (bool(slow), NOTE, f"take {', '.join(slow)} out of PYTENSOR_FLAGS and ~/.pytensorrc"),
    )


def matrix_products(machine: MachineFacts) -> Finding:
    """Check the BLAS libraries that NumPy and SciPy have loaded."""
    blas = {f"{library['internal_api']} {library['version']}" for library in libraries("blas")}
    slow = "matrix products may be slow, and ranks cannot divide the cores"
    found = ", ".join(sorted(blas)) or "no library that threadpoolctl knows"
    return grade("BLAS", found, (not blas, WARNING, f"{slow}: install NumPy from PyPI or conda-forge"))


def openmp(machine: MachineFacts) -> Finding:
    """Check the OpenMP runtimes that are loaded with synk."""
    runtimes = {library["prefix"] for library in libraries("openmp")}
    mixed = (
        "two runtimes in one process can crash it: install NumPy and the others from one source, "
        "all from PyPI or all from conda-forge"
    )
    early = (
        f"call synk.fork() before anything computes with {UNSAFE_RUNTIME}: used before, it hangs in workers"
    )
    return grade(
        "OpenMP",
        ", ".join(sorted(runtimes)) or "no runtime is loaded",
        (len(runtimes) > 1, WARNING, mixed),
        (UNSAFE_RUNTIME in runtimes, NOTE, early),
    )


def libraries(kind: str) -> list[dict[str, Any]]:
    """Return threadpoolctl's records of the loaded libraries of a kind, ``"blas"`` or ``"openmp"``."""
    for name in ("numpy", "scipy.linalg"):  # importing these loads the libraries
        import_module(name)
    return [found for found in import_module("threadpoolctl").threadpool_info() if found["user_api"] == kind]


CHECKS = (
    python,
    package_synk,
    numpy,
    pytensor,
    posix_ipc,
    cloudpickle,
    threadpoolctl,
    pytensor_settings,
    matrix_products,
    openmp,
)
