"""Checks of compiled kernels: the C compiler, the folder that keeps compiled libraries, and oneDNN."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module

from synk.tools.doctor.finding import NOTE, OK, WARNING, Finding, grade
from synk.tools.doctor.machine import MIB, MachineFacts, size

INSTALL = "install one (apt install gcc, dnf install gcc), or set CC to one"


def compiler(machine: MachineFacts) -> Finding:
    """Check the C compiler, which fuses elementwise graphs into one loop."""
    subject, module = "C compiler", import_module("synk.compile.native.compiler")
    found = module.find_compiler()
    if found is None:
        remedy = f"elementwise graphs run several times slower: {INSTALL}"
        return Finding(WARNING, subject, module.why_none(machine.environ), remedy)
    name = " ".join(found.command)
    (made,) = found.compile([_probe()])
    if isinstance(made, Exception):
        return Finding(WARNING, subject, f"{name} fails: {_reason(made)}", INSTALL)
    try:
        answer = import_module("synk.compile.native.libraries").load(made).synk_probe()
    except OSError as error:
        return Finding(WARNING, subject, f"{name} compiles, but does not load: {error}", INSTALL)
    return grade(subject, f"{name} compiles", (answer != 42, WARNING, f"{name} compiles wrongly: {INSTALL}"))


def _probe() -> str:
    """Return C source with a small function, after everything that kernels include and declare."""
    empty = import_module("synk.compile.regions.frame").source_file({}, set())
    return f"{empty}\nint synk_probe(void) {{ return 42; }}\n"


def _reason(error: Exception) -> str:
    """Return the most informative line of a `CompileError`: the first with "error", or the last."""
    lines = (str(error).partition(" failed: ")[2] or str(error)).splitlines()
    return next((line for line in lines if "error" in line), lines[-1])


def array_layout(machine: MachineFacts) -> Finding:
    """Check that NumPy's arrays have the memory layout that compiled loops read directly."""
    known = import_module("synk.compile.native.methods").layout_is_known()
    return grade(
        "layout of arrays",
        "as compiled loops expect" if known else "not as compiled loops expect",
        (not known, WARNING, "elementwise graphs run several times slower: install another NumPy"),
    )


def kernel_cache(machine: MachineFacts) -> Finding:
    """Check the folder that keeps compiled kernels; without it each process compiles its own."""
    subject, module = "kernel cache", import_module("synk.compile.native.store")
    store = module.Store()
    choose = "every process compiles anew: set SYNK_CACHE to a folder that is yours alone"
    kept, refused, present, where = list[object](), list[str](), store.folder, ""
    try:
        try:
            kept, refused = store.list_files()
        except FileNotFoundError:
            # Check the innermost parent folder that exists.
            present = next(around for around in store.folder.absolute().parents if os.path.exists(around))
        where = f" ({present})"
        with tempfile.TemporaryDirectory(prefix="synk-", dir=present) as inside, module.own_folder(inside):
            pass
    except OSError as error:
        found = f"{store.folder or 'a folder'} is not used: {module.message_of(error)}{where}"
        return Finding(WARNING, subject, found, choose)
    free = machine.space(present).free
    return grade(
        subject,
        f"{len(kept)} kernels in {store.folder}, {size(free)} free",
        (free < 16 * MIB, WARNING, choose),
        (bool(refused), WARNING, f"{len(refused)} files there are not used: {'; '.join(refused[:3])}"),
    )


def onednn(machine: MachineFacts) -> Finding:
    """Check oneDNN, which computes convolutions of float32; where it does not load, NumPy does."""
    library = import_module("synk.compile.native.find_onednn")
    found = library.find()
    if found.library is not None:
        version = found.library.dnnl_version().contents
        numbers = f"{version.major}.{version.minor}.{version.patch}"
        return Finding(OK, "oneDNN", f"{numbers} in {found.library._name}")
    reason, _, remedy = found.reason.rpartition(": ")
    if not reason:  # nothing can be done on this kind of machine
        return Finding(OK, "oneDNN", f"{found.reason}: convolutions run in NumPy")
    # If a file of that name exists and is not used, something is wrong with it.
    level = NOTE if next(library.places(), None) is None else WARNING
    return Finding(level, "oneDNN", reason, f"convolutions run in NumPy, slower: {remedy}")


CHECKS = (compiler, array_layout, kernel_cache, onednn)
