"""Find the modules that the script's author may edit and reload, and the modules that these refer to.

Installed packages, the standard library, PyTensor and this package are not reloaded.

    names of modules -> reached -> these names, and those of the modules that the author's own ones refer to
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Collection, Iterator
from types import ModuleType

OURS = frozenset({"synk", "pytensor"})
INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def is_own(name: str) -> bool:
    """Tell whether a module is a file of the script's author, which may be edited and reloaded."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if origin is None or not os.path.isabs(origin):  # a namespace, a built-in module, or the script
        return False
    return name.partition(".")[0] not in OURS and not origin.startswith(INSTALLED)


def reached(names: Collection[str]) -> set[str]:
    """Return the names of these modules and of all modules that they refer to, directly or not.

    References are followed through the modules of the script's author only.
    """
    found, waiting = set(names), list(names)
    while waiting:
        name = waiting.pop()
        if is_own(name):
            new = set(_named(sys.modules[name])) - found
            found |= new
            waiting += new
    return found


def _named(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name
