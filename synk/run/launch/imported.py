"""Find out whether the script has reloaded a module that the workers have as it was before.

ForkSource.note_forking -> ImportedModules ... check, before anything that names modules is sent

A reload gives a module another ``__spec__`` object. Workers have the modules that were imported when they
were forked; they import others when a message first names them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from synk.values.by_value import SCRIPT
from synk.values.errors import SynkStateError
from synk.values.modules import reached


class ImportedModules:
    """The modules of this process at the moment of a fork, which its workers have, too."""

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {
            name: getattr(module, "__spec__", None) for name, module in sys.modules.copy().items()
        }

    def check(self, names: Collection[str], also_indirectly: bool) -> None:
        """Raise SynkStateError if one of these modules was reloaded since.

        With ``also_indirectly``, the modules that they refer to are checked, too.
        """
        for name in reached(names) if also_indirectly else names:
            if self._is_reloaded(name):
                raise SynkStateError(
                    f"module {name!r} was reloaded, and the workers have it as it was before: "
                    "synk.restart() makes workers that have it as it is now (synk.commit() keeps the values "
                    "of shared variables)"
                )

    def _is_reloaded(self, name: str) -> bool:
        """Tell whether a module was reloaded since the fork; a new one is recorded as it is now."""
        module = sys.modules.get(name)
        if module is None or name == SCRIPT:  # code of the script is sent by value
            return False
        spec = getattr(module, "__spec__", None)
        return self._specs.setdefault(name, spec) is not spec
