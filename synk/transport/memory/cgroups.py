"""Find the control groups of this process, and the names of the files in which they keep their limits.

A container and a batch system limit their processes by control groups. These nest, and each level may have
a limit: the tightest counts. Version 2 has one tree for all controllers, version 1 one for each; a machine
may mount both.

    /proc/self/cgroup, mountinfo -> find_cgroups -> Cgroup, ... -> `limits`, and the doctor's checks
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

UNLIMITED = 1 << 62  # version 1 writes "no limit" as a number near 2**63


class Ceiling(NamedTuple):
    """The names of the files of one limit on memory in the folder of a cgroup."""

    limit: str
    usage: str
    counts_swap: bool = False  # whether memory that is swapped out still counts


class CgroupVersion(NamedTuple):
    """The names of files and numbers in a version of cgroups."""

    ceilings: tuple[Ceiling, ...]
    file_cache: tuple[str, ...]  # lines of memory.stat: usage that the kernel takes back when it must
    swap: Ceiling | None


VERSIONS = {
    # Beyond memory.high nobody is killed, but held up, by seconds for each few pages.
    "cgroup2": CgroupVersion(
        (Ceiling("memory.max", "memory.current"), Ceiling("memory.high", "memory.current")),
        ("inactive_file", "active_file"),
        Ceiling("memory.swap.max", "memory.swap.current"),
    ),
    "cgroup": CgroupVersion(
        (
            Ceiling("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Ceiling("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", counts_swap=True),
        ),
        ("total_inactive_file", "total_active_file"),
        None,
    ),
}


class Cgroup(NamedTuple):
    """A cgroup of this process: the one it is in, or one around that."""

    name: str
    folder: str
    version: CgroupVersion


def find_cgroups(membership: str, mounts: str, controller: str = "memory") -> Iterator[Cgroup]:
    """Yield the cgroups of a process for one controller, innermost first; some folders may not be there.

    ``membership`` and ``mounts`` are the texts of its ``/proc/self/cgroup`` and ``mountinfo``. The controller
    is ``"memory"``, ``"cpu"`` or ``"pids"``.
    """
    paths = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            paths["cgroup"] = path
        elif not controllers:
            paths["cgroup2"] = path
    for line in mounts.splitlines():
        place, _, system = line.partition(" - ")
        kind, *_, options = system.split(" ")
        if kind in paths and (kind == "cgroup2" or controller in options.split(",")):
            root, mount = (field.replace("\\040", " ") for field in place.split(" ")[3:5])
            for name in _upwards(PurePosixPath(paths[kind]), PurePosixPath(root)):
                yield Cgroup(str(PurePosixPath("/", name)), str(PurePosixPath(mount, name)), VERSIONS[kind])


def _upwards(path: PurePosixPath, root: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the paths of a cgroup and of those around it, relative to the mounted one, which comes last."""
    # In a container the path may be that of the machine, or one outside of what can be seen.
    within = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
    if ".." in within.parts:
        within = PurePosixPath()
    yield within
    yield from within.parents
