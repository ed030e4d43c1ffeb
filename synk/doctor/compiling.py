"""Checks of compiled kernels: the compiler, the folder that keeps what it makes, and oneDNN."""

from __future__ import annotations

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
    module = import_module("synk.native.compiler")
    if found is ...:
        found = module.find_compiler()
    subject = "C compiler"
    if found is None:
        remedy = f"elementwise graphs run several times slower: {INSTALL}"
        return Finding(Level.WARNING, subject, module.why_none(machine.environ), remedy)
    name = " ".join(found.command)
    (made,) = found.compile([_probe()])
    if isinstance(made, Exception):
        return Finding(Level.WARNING, subject, f"{name} fails: {_reason(made)}", INSTALL)
    try:
        answer = import_module("synk.native.loading").load(made).synk_probe()
    except OSError as error:
        return Finding(Level.WARNING, subject, f"{name} compiles, but does not load: {error}", INSTALL)
    return grade(
        subject, f"{name} compiles", (answer != 42, Level.WARNING, f"{name} compiles wrongly: {INSTALL}")
    )


def _probe() -> str:
    """Return a function, after all that kernels include and declare."""
    empty = import_module("synk.compile.elementwise.c_source").translation_unit({})
    return f"{empty}\nint synk_probe(void) {{ return 42; }}\n"


def _reason(error: Exception) -> str:
    """Return the line of a `CompileError` that tells most."""
    lines = (str(error).partition(" failed: ")[2] or str(error)).splitlines()
    return next((line for line in lines if "error" in line), lines[-1])


def array_layout(machine: Machine) -> Finding:
    """Compiled loops read NumPy's arrays in place."""
    known = import_module("synk.native.loading").layout_is_known()
    return grade(
        "layout of arrays",
        "as compiled loops expect" if known else "not as compiled loops expect",
        (not known, Level.WARNING, "elementwise graphs run several times slower: install another NumPy"),
    )


def kernel_cache(machine: Machine, folder: Path | None = None) -> Finding:
    """Compiled kernels are kept in a folder; without it each process compiles its own."""
    module = import_module("synk.native.store")
    store, subject = module.Store(folder), "kernel cache"
    choose = "every process compiles anew: set SYNK_CACHE to a folder that is yours alone"
    kept, refused, present = 0, list[str](), store.folder
    try:
        kept, refused = store.look()
    except FileNotFoundError:
        present = _present(store.folder)
    except OSError as error:
        found = f"{store.folder or 'a folder'} is not used: {module.said(error)}"
        return Finding(Level.WARNING, subject, found, choose)
    try:
        with tempfile.TemporaryDirectory(prefix="synk-", dir=present) as inside, module.own_folder(inside):
            pass
    except OSError as error:
        found = f"{store.folder} is not used: {module.said(error)} ({present})"
        return Finding(Level.WARNING, subject, found, choose)
    free = machine.space(present).free
    return grade(
        subject,
        f"{kept} kernels in {store.folder}, {size(free)} free",
        (free < 16 * MIB, Level.WARNING, choose),
        (bool(refused), Level.WARNING, f"{len(refused)} files there are not used: {'; '.join(refused[:3])}"),
    )


def _present(folder: Path) -> Path:
    """Return the folder that is there, of those around a missing one."""
    return next(around for around in folder.absolute().parents if os.path.exists(around))


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
