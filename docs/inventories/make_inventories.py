"""Write the inventories by which the site links to other projects, from what is installed.

    names of modules, and where each project documents them -> python.inv, numpy.inv, pytensor.inv, pymc.inv

    python docs/inventories/make_inventories.py

Sphinx's own inventories lie on the sites of the projects, and a build fetches nothing. These have the names
that our pages and docstrings may link to, in the same format; the places are those that the projects' sites
have had for years. PyMC need not be installed, so its names are listed.
"""

import builtins
import importlib
import inspect
import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
HEAD = (
    "# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    "# The remainder of this file is compressed using zlib.\n"
)
# An entry: a name, its role, and where it is; "$" at the end of a place stands for the name.
Entry = tuple[str, str, str]

MODULES = ("collections", "collections.abc", "contextlib", "functools", "logging", "multiprocessing", "os")
MODULES += ("pathlib", "pickle", "random", "signal", "threading", "typing", "warnings")
TYPES = {"bool", "bytes", "dict", "float", "int", "list", "str", "tuple"}


def role_of(member: object) -> str:
    """Return the role by which Sphinx knows an object."""
    if inspect.isclass(member):
        return "exception" if issubclass(member, BaseException) else "class"
    return "function" if callable(member) else "data"


def of_python() -> Iterator[Entry]:
    """Yield Python's built-in names, its modules, and what these have."""
    for name in dir(builtins):
        member = getattr(builtins, name)
        if name.startswith("_"):
            continue
        if inspect.isclass(member) and issubclass(member, BaseException):
            yield name, "exception", "library/exceptions.html#$"
        elif inspect.isclass(member):
            yield name, "class", f"library/{'stdtypes' if name in TYPES else 'functions'}.html#$"
        else:
            yield name, "function" if callable(member) else "data", "library/functions.html#$"
    for module in MODULES:
        yield module, "module", f"library/{module}.html#module-$"
        for name, member in vars(importlib.import_module(module)).items():
            if not name.startswith("_") and getattr(member, "__module__", module) in (module, f"_{module}"):
                yield f"{module}.{name}", role_of(member), f"library/{module}.html#$"


def of_numpy() -> Iterator[Entry]:
    """Yield the functions and classes of NumPy, its arrays' methods, and those of its generators."""
    import numpy as np

    for module in (np, np.linalg, np.random):
        for name in module.__all__:
            full = f"{module.__name__}.{name}"
            where = "random/" if module is np.random else ""
            yield full, role_of(getattr(module, name)), f"reference/{where}generated/{full}.html#$"
    for name in dir(np.ndarray):
        if not name.startswith("_"):
            yield f"numpy.ndarray.{name}", "method", f"reference/generated/numpy.ndarray.{name}.html#$"


def of_pytensor() -> Iterator[Entry]:
    """Yield the names of PyTensor that its documentation describes on the pages below."""
    pages = {
        "library/compile/function": ("pytensor.function",),
        "library/compile/shared": ("pytensor.shared",),
        "library/gradient": ("pytensor.gradient.grad",),
    }
    for page, names in pages.items():
        for name in names:
            yield name, "function", f"{page}.html"
    import pytensor.tensor as pt

    for name, member in vars(pt).items():
        if callable(member) and not name.startswith("_") and not inspect.isclass(member):
            yield f"pytensor.tensor.{name}", "function", "library/tensor/basic.html"


def of_pymc() -> Iterator[Entry]:
    """Yield the functions of PyMC that ours have the names and arguments of."""
    yield "pymc.Model", "class", "api/model/generated/pymc.model.core.Model.html"
    for name in ("sample", "sample_posterior_predictive", "compute_log_likelihood", "find_MAP", "fit"):
        yield f"pymc.{name}", "function", f"api/generated/pymc.{name}.html"


def main() -> None:
    """Write the four files beside this one."""
    for entries in (of_python, of_numpy, of_pytensor, of_pymc):
        project = entries.__name__.removeprefix("of_")
        lines = sorted({f"{name} py:{role} 1 {where} -" for name, role, where in entries()})
        text = zlib.compress("".join(f"{line}\n" for line in lines).encode(), 9)
        (HERE / f"{project}.inv").write_bytes(HEAD.format(project=project).encode() + text)


if __name__ == "__main__":
    main()
