"""Checks of what synk stands on: Python, its packages, PyTensor's settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any

from synk.doctor.finding import Finding, Level, grade
from synk.doctor.machine import Machine

# Settings of PyTensor that make every function slower to build or to call, with the value that does not.
HARMLESS_SETTINGS = {
    "profile": False,
    "profile_optimizer": False,
    "optimizer_verbose": False,
    "check_stack_trace": "off",
    "compute_test_value": "off",
}

# Their kernels know nothing of a fork: a child that computes with them after its parent did waits forever.
UNSAFE_RUNTIME = "libgomp"


def python(machine: Machine, version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The Python that runs this."""
    return grade(
        "Python",
        ".".join(map(str, version)),
        (
            version[:2] < (3, 11),
            Level.PROBLEM,
            "synk needs Python 3.11 or newer: install it beside this one",
        ),
        (not sys.platform.startswith("linux"), Level.PROBLEM, "synk needs Linux: use a virtual machine"),
    )


def package(
    name: str,
    lowest: tuple[int, ...] = (),
    below: tuple[int, ...] = (),
    find_version: Callable[[str], str] = metadata.version,
    load: Callable[[str], Any] = import_module,
) -> Finding:
    """Look at a package that synk cannot do without.

    Parameters
    ----------
    name : str
    lowest, below : tuple of int, optional
        The supported versions, ``lowest <= version < below``.
    find_version, load : callable
        Return the version of an installed package, and import it.
    """
    wanted = name
    if below:
        wanted = f"'{name}>={'.'.join(map(str, lowest))},<{'.'.join(map(str, below))}'"
    install = f"{sys.executable} -m pip install {wanted}"
    try:
        version = find_version(name)
    except metadata.PackageNotFoundError:
        return Finding(Level.PROBLEM, name, "not installed", install)
    try:
        load(name)
    except Exception as error:
        found = f"{version}, fails to import: {type(error).__name__}: {_first_line(error)}"
        reinstall = install.replace("install ", "install --force-reinstall ")
        return Finding(Level.PROBLEM, name, found, f"do what it says, or {reinstall}")
    numbers = release(version)
    outside = numbers < lowest or bool(below and numbers >= below)
    return grade(name, version, (outside, Level.PROBLEM, install))


def release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``"3.0.7.dev1"`` is (3, 0, 7)."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def numpy(machine: Machine) -> Finding:
    """Arrays, and the matrix products of processor cores."""
    return package("numpy")


def pytensor(machine: Machine) -> Finding:
    """Graphs, gradients and rewrites."""
    return package("pytensor", (3, 0), (4,))


def posix_ipc(machine: Machine) -> Finding:
    """Names of shared memory."""
    return package("posix_ipc")


def threadpoolctl(machine: Machine) -> Finding:
    """The threads of each rank's matrix products."""
    return package("threadpoolctl")


def pytensor_settings(machine: Machine, config: Any = None) -> Finding:
    """Settings from ``PYTENSOR_FLAGS`` or ``.pytensorrc`` that make runs slower.

    ``mode`` and ``linker`` are not among them: a run compiles in its own mode.
    """
    if config is None:
        config = import_module("pytensor").config
    slow = {
        name: getattr(config, name, value)
        for name, value in HARMLESS_SETTINGS.items()
        if getattr(config, name, value) != value
    }
    return grade(
        "PyTensor's settings",
        ", ".join(f"{name}={value}" for name, value in slow.items()) or "none that slows runs",
        (bool(slow), Level.NOTE, f"take {', '.join(slow)} out of PYTENSOR_FLAGS and ~/.pytensorrc"),
    )


def matrix_products(machine: Machine, libraries: Sequence[dict[str, Any]] | None = None) -> Finding:
    """The BLAS libraries that NumPy and SciPy brought along."""
    blas = [library for library in _libraries(libraries) if library["user_api"] == "blas"]
    described = {f"{library['internal_api']} {library['version']}" for library in blas}
    return grade(
        "BLAS",
        ", ".join(sorted(described)) or "no library that threadpoolctl knows",
        (
            not blas,
            Level.WARNING,
            "matrix products may be slow, and ranks cannot divide the cores: install NumPy from PyPI or "
            "conda-forge",
        ),
    )


def openmp(machine: Machine, libraries: Sequence[dict[str, Any]] | None = None) -> Finding:
    """The OpenMP runtimes that are loaded with synk."""
    runtimes = {library["prefix"] for library in _libraries(libraries) if library["user_api"] == "openmp"}
    early = (
        f"call synk.fork() before anything computes with {UNSAFE_RUNTIME}: used before, it hangs in workers"
    )
    return grade(
        "OpenMP",
        ", ".join(sorted(runtimes)) or "no runtime is loaded",
        (
            len(runtimes) > 1,
            Level.WARNING,
            "two runtimes in one process can crash it: install NumPy and the others from one source, "
            "all from PyPI or all from conda-forge",
        ),
        (UNSAFE_RUNTIME in runtimes, Level.NOTE, early),
    )


def _libraries(known: Sequence[dict[str, Any]] | None) -> Sequence[dict[str, Any]]:
    if known is not None:
        return known
    for name in ("numpy", "scipy.linalg"):  # which load them
        import_module(name)
    return import_module("threadpoolctl").threadpool_info()


CHECKS = (
    python,
    numpy,
    pytensor,
    posix_ipc,
    threadpoolctl,
    pytensor_settings,
    matrix_products,
    openmp,
)
