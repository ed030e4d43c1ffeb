"""Read the facts that checks need of a machine: files of the kernel, the environment, limits.

They are one object, so that a test can give a check another machine: a folder with a few files in place of
``/``.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Mount(NamedTuple):
    """One line of ``/proc/self/mountinfo``."""

    root: str  # the folder of the file system that is mounted
    point: str
    kind: str  # "tmpfs"
    options: tuple[str, ...]  # those of the file system


@dataclass(frozen=True)
class MachineFacts:
    """A machine as one process sees it."""

    root: Path  # where /proc, /sys and /dev are
    environ: Mapping[str, str]
    affinity: frozenset[int]  # cores that this process may run on
    uid: int
    rlimit: Callable[[int], tuple[int, int]] = resource.getrlimit  # of RLIMIT_NOFILE: soft, hard
    space: Callable[[Path], Any] = shutil.disk_usage  # has bytes as total and free

    @classmethod
    def here(cls) -> MachineFacts:
        """Return this machine, as this process sees it."""
        affinity = frozenset(os.sched_getaffinity(0))
        return cls(Path("/"), dict(os.environ), affinity, os.getuid())

    def path(self, absolute: str) -> Path:
        """Return the path to open for a file of this machine: below ``root``, which a test may set."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str | None:
        """Return the text of a file, without white space around it; None where it cannot be read."""
        try:
            return self.path(absolute).read_text().strip()
        except OSError:
            return None

    def number(self, absolute: str) -> int | None:
        """Return the integer that a file holds, or None."""
        text = self.text(absolute) or ""
        return int(text) if text.lstrip("-").isdigit() else None

    def table(self, absolute: str) -> dict[str, int]:
        """Return the numbers in lines like ``MemTotal:  1024 kB`` or ``inactive_file 17``, by name."""
        rows = [line.replace(":", " ").split() for line in (self.text(absolute) or "").splitlines()]
        return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}

    def limits(self, which: int) -> tuple[int | None, int | None]:
        """Return the soft and the hard limit ``resource.RLIMIT_...``; None is unlimited."""
        soft, hard = (None if value == resource.RLIM_INFINITY else value for value in self.rlimit(which))
        return soft, hard

    def mounts(self) -> list[Mount]:
        """Return all mounts of this process's namespace, earliest first. See proc(5)."""
        found = []
        for line in (self.text("/proc/self/mountinfo") or "").splitlines():
            ours, _, its = line.partition(" - ")
            fields, facts = ours.split(), its.split()
            if len(fields) > 4 and len(facts) > 1:
                options = facts[2].split(",") if len(facts) > 2 else []
                found.append(Mount(fields[3], fields[4], facts[0], tuple(options)))
        return found

    def mount_of(self, absolute: str) -> Mount | None:
        """Return the mount that a path lies in; of several mounts at one point, the last hides the others."""
        path = PurePosixPath(absolute)
        around = [mount for mount in self.mounts() if path.is_relative_to(mount.point)]
        return max(reversed(around), key=lambda mount: len(mount.point), default=None)

    def in_container(self) -> bool:
        """Return whether this process seems to run in a container of Docker, Podman or Kubernetes."""
        marks = ("/.dockerenv", "/run/.containerenv")
        return any(self.path(mark).exists() for mark in marks) or "KUBERNETES_SERVICE_HOST" in self.environ


def size(nbytes: float) -> str:
    """Return a number of bytes as text: ``64 MiB``, ``23.5 GiB``."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{nbytes:.0f} bytes"
