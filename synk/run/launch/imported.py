"""Know which modules the workers have as they were before the script has reloaded them.

ForkSource.note_forking -> ImportedModules ... check, before anything that names modules is sent

A reload gives a module another ``__spec__``. Workers got theirs when they were forked, or import one when it
is first named to them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from synk.values.by_value import SCRIPT
from synk.values.errors import SynkStateError
from synk.values.modules import reached


class ImportedModules:
    """The modules of this process at a moment, from which workers have theirs."""

    def __init__(self) -> None:
        self._specs: dict[str, Any] = {
            name: getattr(module, "__spec__", None) for name, module in sys.modules.copy().items()
        }

    def check(self, names: Collection[str], also_indirectly: bool) -> None:
        """Raise SynkStateError if one of these modules was reloaded since, or one that they refer to."""
        for name in reached(names) if also_indirectly else names:
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
