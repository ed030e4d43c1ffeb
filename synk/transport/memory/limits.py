"""Find out how much memory may still be used before the kernel kills a process for it.

A full file system is an error code, but memory beyond the limit of a cgroup (a container's, a job's), or
beyond what the machine has, gets a process killed. So the limits are read before memory is taken.

    /proc, /sys/fs/cgroup -> MemoryLimits.shortage(bytes) -> None, or the limit that is in the way
"""

from __future__ import annotations

import os
import re
import resource
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from synk.transport.memory.cgroups import UNLIMITED, Ceiling, Cgroup, find_cgroups

MEMINFO = re.compile(r"^(MemTotal|MemAvailable|SwapFree): +(\d+) kB$", re.MULTILINE)
RESERVE_SHARE = 64  # of a limit: what page tables, Python and the other ranks may need meanwhile
RESERVE_BYTES = 64 << 20  # but not more than this
UNSEEN_BYTES = 1 << 20  # taken without a look, which costs more than a small segment

CGROUP_HINT = (
    "drop Data that is no longer used, or raise the limit of the container or job "
    "(docker run --memory, Kubernetes resources.limits.memory, sbatch --mem)"
)
MACHINE_HINT = "drop Data that is no longer used, end other programs, or use a machine with more memory"


class Shortage(NamedTuple):
    """A limit that leaves too little memory, and a hint what can be done about it."""

    free: int  # bytes
    limit: int  # bytes
    where: str
    hint: str


class MemoryLimits:
    """The limits on the memory of this process, read anew at each look; tests pass another ``proc``."""

    def __init__(self, proc: Path):
        self._proc = proc
        self._unseen = 0

    @cached_property
    def cgroups(self) -> tuple[Cgroup, ...]:
        """This process's cgroup and those around it, innermost first; read once."""
        membership, mounts = (_text(f"{self._proc}/self/{name}") for name in ("cgroup", "mountinfo"))
        return tuple(find_cgroups(membership, mounts))

    @cached_property
    def _ceilings(self) -> tuple[tuple[Cgroup, Ceiling], ...]:
        """The limits that were set at the first look; limits that are added later are not seen."""
        return tuple(
            (cgroup, ceiling)
            for cgroup in self.cgroups
            for ceiling in cgroup.version.ceilings
            if _number(f"{cgroup.folder}/{ceiling.limit}") is not None
        )

    def shortage(self, nbytes: int) -> Shortage | None:
        """Return the first limit that ``nbytes`` more would exceed, or None.

        Small requests are not checked until they add up to `UNSEEN_BYTES`.
        """
        self._unseen += nbytes
        if self._unseen <= UNSEEN_BYTES:
            return None
        self._unseen = 0
        for cgroup, ceiling in self._ceilings:
            short = self._below(cgroup, ceiling, nbytes)
            if short is not None:
                return short
        return self._in_machine(nbytes)

    def _below(self, cgroup: Cgroup, ceiling: Ceiling, nbytes: int) -> Shortage | None:
        limit = _number(f"{cgroup.folder}/{ceiling.limit}")
        usage = _number(f"{cgroup.folder}/{ceiling.usage}")
        if limit is None or usage is None:
            return None
        free = limit - usage - _reserve(limit)
        # Most often there is enough without these, which take longer to find out.
        if free < nbytes:
            entries = _table(f"{cgroup.folder}/memory.stat")
            free += sum(entries.get(kind, 0) for kind in cgroup.version.file_cache)
        if free < nbytes and not ceiling.counts_swap:
            free += self._swap_for(cgroup)
        if free >= nbytes:
            return None
        return Shortage(max(free, 0), limit, f"cgroup {cgroup.name} ({ceiling.limit})", CGROUP_HINT)

    def _swap_for(self, cgroup: Cgroup) -> int:
        """Return how many bytes of the cgroup the kernel could still swap out."""
        room = self._meminfo().get("SwapFree", 0)
        if cgroup.version.swap is not None:
            limit = _number(f"{cgroup.folder}/{cgroup.version.swap.limit}")
            usage = _number(f"{cgroup.folder}/{cgroup.version.swap.usage}")
            if limit is not None and usage is not None:
                room = min(room, max(limit - usage, 0))
        return room

    def _in_machine(self, nbytes: int) -> Shortage | None:
        entries = self._meminfo()
        if "MemAvailable" not in entries or "MemTotal" not in entries:
            return None
        limit = entries["MemTotal"]
        free = entries["MemAvailable"] + entries.get("SwapFree", 0) - _reserve(limit)
        return None if free >= nbytes else Shortage(max(free, 0), limit, "this machine", MACHINE_HINT)

    def _meminfo(self) -> dict[str, int]:
        return {name: 1024 * int(size) for name, size in MEMINFO.findall(_text(f"{self._proc}/meminfo"))}


def file_size_limit() -> float:
    """Return the most bytes that a file of this process may have; shared memory is files, too."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _reserve(limit: int) -> int:
    return min(limit // RESERVE_SHARE, RESERVE_BYTES)


def _number(path: str) -> int | None:
    """Return the number in a file; None if there is none, or if it stands for no limit."""
    text = _text(path).strip()
    return int(text) if text.isdigit() and int(text) < UNLIMITED else None


def _table(path: str) -> dict[str, int]:
    """Return the numbers in a file of lines like ``name number``."""
    fields = (line.split() for line in _text(path).splitlines())
    return {name: int(size) for name, size, *_ in fields if size.isdigit()}


def _text(path: str) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return os.fsdecode(file.readall())
    except OSError:  # the cgroup was removed, or /proc is not what we know
        return ""
