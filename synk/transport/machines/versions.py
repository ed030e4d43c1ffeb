"""Compare what two machines must have alike for pickled graphs and functions to travel between them.

versions here, in hellos -> compare -> VersionsDiffer, which names both hosts
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from synk.values.errors import SynkError

PACKAGES = ("synk", "pytensor", "numpy")


class VersionsDiffer(SynkError, RuntimeError):
    """The other machine has another version of Python, or of a package that both must have alike."""


def versions() -> dict[str, str]:
    """Return the versions on this machine; of Python the first two numbers, which bytecode depends on."""
    packages = {name: import_module(name).__version__ for name in PACKAGES}
    return {"python": "{}.{}".format(*sys.version_info), **packages}


def compare(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise `VersionsDiffer` unless two hellos, each with its ``host``, have the same ``versions``."""
    here, there = mine["versions"], dict(theirs.get("versions", {}))
    other = [name for name in here if here[name] != there.get(name)]
    if other:
        raise VersionsDiffer(
            f"host {theirs.get('host')!r} has {_listing(there, other)}, and host {mine['host']!r} has "
            f"{_listing(here, other)}: install the same on both"
        )


def _listing(found: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} {found.get(name, 'of no version')}" for name in names)
