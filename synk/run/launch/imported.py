"""Know which modules the workers have as they were before the script has reloaded them.

ForkSource.note_forking -> ImportedModules ... check, before anything that names modules is sent

A reload gives a module another ``__spec__``. Workers got theirs when they were forked, or import one when it
is first named to them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from synk.values.by_value import SCRIPT
from synk.values.errors import SynkStateError


class ImportedModules:
    """The modules of this process at a moment, from which workers have theirs."""

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {
            name: getattr(module, "__spec__", None) for name, module in sys.modules.copy().items()
        }

    def check(self, names: Collection[str], also_indirectly: bool) -> None:
        """Raise SynkStateError if one of these modules was reloaded since, or one that they refer to."""
        if also_indirectly and any(map(self._is_reloaded, [*self._specs])):
            names = _reached(names)
        for name in names:
            if self._is_reloaded(name):
                raise SynkStateError(
                    f"module {name!r} was reloaded, and the workers have it as it was before: "
                    "synk.restart() makes workers that have it as it is now (synk.commit() keeps the values "
                    "of shared variables)"
                )

    def _is_reloaded(self, name: str) -> bool:
        module = sys.modules.get(name)
        if module is None or name == SCRIPT:  # whose code goes by value
            return False
        spec = getattr(module, "__spec__", None)
        return self._specs.setdefault(name, spec) is not spec


def _reached(names: Collection[str]) -> set[str]:
    """Return modules with all that they refer to, and these refer to."""
    found, waiting = set(names), list(names)
    while waiting:
        module = sys.modules.get(waiting.pop())
        new = set(_named(module)) - found
        found |= new
        waiting += new
    return found


def _named(module: ModuleType | None) -> Iterator[str]:
    for value in list(vars(module).values()) if isinstance(module, ModuleType) else ():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name
