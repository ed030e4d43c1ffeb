"""List the libraries in the folder of a store, and remove those that were used longest ago.

Other processes may read and write meanwhile: one that has opened a file reads all of it, one that finds none
compiles, and of two that remove the same file one comes second.

    folder -> look_into -> KeptFile, ... -> shrink -> those that went
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
    """Return the libraries in an open folder, used longest ago first, and why other files are not taken."""
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
    """Remove libraries, used longest ago first, until ``most`` bytes are left; return those that went."""
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

    ValueError if that is no size.
    """
    text = environ.get("SYNK_CACHE_LIMIT", "").strip() or "1G"
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if match is None:
        raise ValueError(f"SYNK_CACHE_LIMIT={text} is no size: set it to one such as 512M or 2G")
    return int(match[1]) * UNITS[match[2]]
