"""Warn if the other project called synk is installed, too: its only file, synk/__init__.py, is one of ours.

synk.__init__, once -> warn_of_namesakes -> SynkWarning, with the remedy
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from synk.values.script_frames import warn_the_script

DISTRIBUTION = "synk-pytensor"  # the name of this package's distribution, which was once "synk" as well
METADATA = re.compile(r"synk-[^-]+(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)
FILES = ("METADATA", "PKG-INFO", "")  # in the metadata folder, which the oldest installers make a file
OURS = "Requires-Dist: pytensor"  # a line of our metadata, which the other project's lacks
OUR_LINE = "from synk.values.namesake import"  # a line of our __init__.py
PACKAGES = ("site-packages", "dist-packages")
REMEDY = (
    f"pip uninstall synk; then, as that takes synk/__init__.py along, install {DISTRIBUTION} again from its "
    "sources: pip install --force-reinstall --no-deps ."
)


def namesakes(places: Iterable[str] | None = None) -> list[str]:
    """Return the folders with the metadata of other projects called synk.

    They are looked for in the folders ``places``, by default in those of packages on Python's path.
    """
    if places is None:
        places = (place for place in sys.path if os.path.basename(place) in PACKAGES)
    return [folder for place in dict.fromkeys([*places, own_place()]) for folder in _namesakes_in(place)]


def is_ours(init: Path) -> bool:
    """Return whether a file is this package's ``__init__.py``, and not the one of another project."""
    return OUR_LINE in init.read_text(errors="replace")


def own_place() -> str:
    """Return the folder that holds the folder of this package."""
    return str(Path(__file__).parents[2])


def _namesakes_in(place: str) -> Iterator[str]:
    # Entries are read by name only: importlib.metadata would take 30 ms to import.
    with suppress(OSError):
        for name in filter(METADATA.fullmatch, os.listdir(place)):
            found = [path for path in (Path(place, name, file) for file in FILES) if path.is_file()]
            if found and OURS not in found[0].read_text(errors="replace"):
                yield os.path.join(place, name)


def warn_of_namesakes() -> None:
    """Warn if another project called synk is installed, too."""
    for folder in namesakes()[:1]:
        warn_the_script(
            f"another project called synk is installed beside this one, {DISTRIBUTION}: {folder}. Both have "
            f"synk/__init__.py, and either replaces or removes the other's: {REMEDY}"
        )
