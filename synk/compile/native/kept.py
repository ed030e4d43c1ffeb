"""List the libraries in the folder of a store, and remove those that were used longest ago.

Other processes may use the folder at the same time. A process that has opened a file can read all of it, even
if another one removes it; a process that does not find a file compiles it anew; and if two remove the same
file, the second one finds it gone, which is no error.

    folder -> look_into -> KeptFile, ... -> shrink -> those that were removed
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from synk.compile.native.own_files import NotOwn, check_own_file

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class KeptFile(NamedTuple):
    """A library in the folder of a store."""

    used: float  # seconds since 1970, as in `time.time`
    name: str
    size: int  # bytes


def look_into(folder: int) -> tuple[list[KeptFile], list[str]]:
    """Return the libraries in an open folder, those used longest ago first, and why others are ignored."""
    kept, refused = [], []
    inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        for name in sorted(os.listdir(inside)):
            if name.startswith("k") and name.endswith(".so"):
                with suppress(FileNotFoundError):  # another process removes it
                    facts = os.stat(name, dir_fd=inside, follow_symlinks=False)
                    try:
                        check_own_file(facts, name)
                        kept.append(KeptFile(facts.st_mtime, name, facts.st_size))
                    except NotOwn as error:
                        refused.append(str(error))
    finally:
        os.close(inside)
    return sorted(kept), refused


def shrink(folder: int, most: int) -> list[KeptFile]:
    """Remove the libraries used longest ago until at most ``most`` bytes are left; return those removed."""
    kept, _ = look_into(folder)
    total, gone = sum(file.size for file in kept), []
    for file in kept:
        if total <= most:
            break
        with suppress(FileNotFoundError):
            os.unlink(file.name, dir_fd=folder)
        total -= file.size
        gone.append(file)
    return gone


def size_limit(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes a store may have: ``$SYNK_CACHE_LIMIT``, such as 512M, or 1 GiB.

    Raises ValueError if the variable is set to something else than a size.
    """
    text = environ.get("SYNK_CACHE_LIMIT", "").strip() or "1G"
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if match is None:
        raise ValueError(f"SYNK_CACHE_LIMIT={text} is no size: set it to one such as 512M or 2G")
    return int(match[1]) * UNITS[match[2]]
