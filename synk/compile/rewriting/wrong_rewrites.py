"""Rewrites of PyTensor that give wrong numbers, by version: no graph that synk compiles goes through them.

    KNOWN_WRONG, the installed version -> LEFT_OUT -> `synk.compile.rewriting.rewrites`, `without_wrong(mode)`

A test shows for each entry that PyTensor alone is still wrong where the entry says so: when it fails, a
release has mended the rewrite, and ``mended`` gets that release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytensor
from pytensor.compile.mode import get_mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from synk.compile.rewriting.sound_rewrites import GUARDED

Release = tuple[int, ...]


@dataclass(frozen=True)
class WrongRewrite:
    """A rewrite of PyTensor that is wrong in the releases ``since <= release < mended``."""

    name: str  # as PyTensor registers it
    wrong: str  # what it does, and when that is not the same
    since: Release = (3, 0)
    mended: Release | None = None  # None: not in a release yet
    source: str = ""  # the change in PyTensor that mended it, or made it wrong

    def is_in(self, release: Release) -> bool:
        """Tell whether a release of PyTensor has this wrong rewrite."""
        return self.since <= release and (self.mended is None or release < self.mended)


KNOWN_WRONG = (
    WrongRewrite(
        "local_set_to_inc_subtensor",
        "x[i].set(x[i] + y) becomes x[i].inc(y), which adds twice where i has a position twice; "
        "in 3.2.0 also where the two are of different axes",
        mended=(3, 2, 1),
        source="1f2386323 (3.1.2), pull request 2297 (3.2.1)",
    ),
    WrongRewrite(
        "local_add_of_sparse_write",
        "x + zeros(n)[i].set(y) becomes x[i].inc(y), which adds twice where i has a position twice",
        mended=(3, 1, 2),
        source="1f2386323",
    ),
    WrongRewrite(
        "local_read_of_write_same_indices",
        "x[i].set(y)[i] becomes y, though where i has a position twice the last value stays in both",
    ),
    WrongRewrite(
        "local_write_of_write_same_indices",
        "x[i].inc(y)[i].inc(z) becomes x[i].inc(y + z): the sum wraps in a narrow integer type, is a truth "
        "value of truth values, and ignore_duplicates is lost",
    ),
    WrongRewrite(
        "local_div_by_one",
        "x // 1 becomes x, without the floor of a float",
    ),
    WrongRewrite(
        "local_log_div",
        "log(x / 2) becomes log(x) - log(2) with log(2) in float32, as the constant has a narrow type",
        since=(3, 0, 5),
        mended=(3, 1, 1),
        source="9e104216f",
    ),
)


def release_of(version: str) -> Release:
    """Return the numbers of a version, ``(3, 0, 7)`` of "3.0.7+12.gabc"."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])


def names_in(release: Release) -> tuple[str, ...]:
    """Return the names of the rewrites that are wrong in a release of PyTensor."""
    return tuple(rewrite.name for rewrite in KNOWN_WRONG if rewrite.is_in(release))


LEFT_OUT = names_in(release_of(pytensor.__version__))


def without_wrong(mode: Any) -> Any:
    """Return a mode that the script chose, without the rewrites that are wrong.

    A mode whose rewriter is already made cannot leave out rewrites by name, and is returned as it is.
    """
    found = get_mode(mode)
    by_name = isinstance(getattr(found, "provided_optimizer", None), RewriteDatabaseQuery)
    if not by_name:
        return mode
    guarded = (f"sound_{name}" for name in GUARDED)
    return found.excluding(*LEFT_OUT, *GUARDED).including("cast_terms", *guarded)
