"""Checks of compiled kernels: the compiler, the folder that keeps what it makes, and oneDNN.

Imports ``finding`` and ``machine``; ``synk.compile`` and ``synk.kernels`` only when a check runs.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from synk.doctor.finding import Finding, Level, grade
from synk.doctor.machine import MIB, Machine, size

INSTALL = "install one (apt install gcc, dnf install gcc), or set CC to one"


def compiler(machine: Machine, found: Any = ...) -> Finding:
    """Elementwise graphs become one compiled loop where there is a C compiler.

    ``found`` is what `find_compiler` returns, which is asked where it is not given.
    """
    if found is ...:
        found = import_module("synk.compile.kernels.compiler").find_compiler()
    subject = "C compiler"
    if found is None:
        named = machine.environ.get("CC")
        text = f"CC={named} is not on PATH" if named else "no cc, gcc or clang on PATH"
        remedy = f"elementwise graphs run several times slower: {INSTALL}"
        return Finding(Level.WARNING, subject, text, remedy)
    name = " ".join(found.command)
    with tempfile.TemporaryDirectory(prefix="synk-") as folder:
        try:
            library = found.compile(_probe(), Path(folder))
        except RuntimeError as error:
            return Finding(Level.WARNING, subject, f"{name} fails: {_reason(error)}", INSTALL)
        try:
            answer = ctypes.CDLL(str(library)).synk_probe()
        except OSError as error:
            remedy = f"set TMPDIR to a folder that programs may run from, unlike {tempfile.gettempdir()}"
            return Finding(Level.WARNING, subject, f"{name} compiles, but does not load: {error}", remedy)
    return grade(
        subject, f"{name} compiles", (answer != 42, Level.WARNING, f"{name} compiles wrongly: {INSTALL}")
    )


def _probe() -> str:
    """Return a function, after all that kernels include and declare."""
    empty = import_module("synk.compile.kernels.c_source").translation_unit({})
    return f"{empty}\nint synk_probe(void) {{ return 42; }}\n"


def _reason(error: Exception) -> str:
    """Return the line of a `CompileError` that tells most."""
    lines = str(error).partition(" failed: ")[2].strip().splitlines() or ["it does not say why"]
    told = next((line for line in lines if "error" in line), lines[-1])
    return told.rpartition("]' ")[2]  # the command line was told already


def array_layout(machine: Machine) -> Finding:
    """Compiled loops read NumPy's arrays in place."""
    known = import_module("synk.compile.kernels.library").layout_is_known()
    return grade(
        "layout of arrays",
        "as compiled loops expect" if known else "not as compiled loops expect",
        (not known, Level.WARNING, "elementwise graphs run several times slower: install another NumPy"),
    )


def kernel_cache(machine: Machine, folder: Path | None = None) -> Finding:
    """Compiled kernels are kept in a folder; without it each process compiles its own."""
    if folder is None:
        folder = import_module("synk.compile.kernels.store").default_folder()
    present = folder
    while not present.exists() and present != present.parent:
        present = present.parent
    choose = "every process compiles anew: set SYNK_CACHE to a folder that can be written to"
    try:
        with tempfile.TemporaryDirectory(prefix="synk-", dir=present):
            pass
    except OSError as error:
        found = f"{folder} cannot be written to: {error.strerror} ({present})"
        return Finding(Level.WARNING, "kernel cache", found, choose)
    free = machine.space(present).free
    kept = len(list(folder.glob("*.so"))) if folder.is_dir() else 0
    return grade(
        "kernel cache",
        f"{kept} kernels in {folder}, {size(free)} free",
        (free < 16 * MIB, Level.WARNING, choose),
        (_open_to_others(folder), Level.WARNING, f"others could put code there: chmod go-w {folder}"),
    )


def _open_to_others(folder: Path) -> bool:
    return folder.is_dir() and bool(os.stat(folder).st_mode & 0o022)


def onednn(machine: Machine, found: Any = None, installed: bool | None = None) -> Finding:
    """Convolutions of float32 are oneDNN's where it can be loaded, and products of NumPy elsewhere.

    Parameters
    ----------
    machine : Machine
    found : Found, optional
        The outcome of the search for the library, which is searched for where it is not given.
    installed : bool, optional
        Whether there is a file of that name: then something is wrong if it is not used.
    """
    library = import_module("synk.kernels.onednn.library")
    if found is None:
        found = library.find()
    if found.library is not None:
        version = found.library.dnnl_version().contents
        numbers = f"{version.major}.{version.minor}.{version.patch}"
        return Finding(Level.OK, "oneDNN", f"{numbers} in {found.library._name}")
    reason, _, remedy = found.reason.rpartition(": ")
    if not reason:  # nothing can be done on this kind of machine
        return Finding(Level.OK, "oneDNN", f"{found.reason}: convolutions run in NumPy")
    if installed is None:
        installed = next(library.places(), None) is not None
    level = Level.WARNING if installed else Level.NOTE
    return Finding(level, "oneDNN", reason, f"convolutions run in NumPy, slower: {remedy}")


CHECKS = (compiler, array_layout, kernel_cache, onednn)
