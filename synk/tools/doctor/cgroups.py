"""Read the limits of control groups on this process, by a container or a batch system.

Control groups nest, and each level may have a limit: the tightest counts. Version 2 has one tree for all
controllers, version 1 one for each; a machine may mount both.

    /proc/self/cgroup, mountinfo -> levels -> memory_room, core_quota, process_room
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from synk.tools.doctor.machine import MachineFacts

# Version 1 writes "no limit" as the largest multiple of a page.
UNLIMITED = 1 << 60


class Room(NamedTuple):
    """A limit on memory or processes, and how much of it is left."""

    limit: int
    free: int


def levels(machine: MachineFacts, controller: str) -> Iterator[tuple[int, str]]:
    """Yield the version and the folder of every control group that contains this process, innermost first.

    The controller is ``"memory"``, ``"cpu"`` or ``"pids"``.
    """
    own = dict(_memberships(machine))
    for mount in machine.mounts():
        if mount.kind == "cgroup2":
            version, path = 2, own.get("")
        elif mount.kind == "cgroup" and controller in mount.options:
            version, path = 1, own.get(controller)
        else:
            continue
        if path is not None:
            for folder in _upwards(machine, mount.root, mount.point, path):
                yield version, folder


def _memberships(machine: MachineFacts) -> Iterator[tuple[str, str]]:
    """Yield each controller and this process's path in its tree; the name of version 2 is empty."""
    for line in (machine.text("/proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _upwards(machine: MachineFacts, root: str, point: str, path: str) -> Iterator[str]:
    inner, top = PurePosixPath(path), PurePosixPath(root)
    # In a container only its own part of the tree may be mounted, though the path starts at the top.
    relative = inner.relative_to(top) if inner.is_relative_to(top) else inner.relative_to("/")
    folder = PurePosixPath(point)
    if ".." not in relative.parts:
        folder = folder / relative
    while folder.is_relative_to(point):
        if machine.path(str(folder)).is_dir():
            yield str(folder)
        folder = folder.parent


def memory_room(machine: MachineFacts) -> Room | None:
    """Return the tightest memory limit in bytes, or None without one.

    The kernel counts its cache of files as used; it is counted as free here, since it can be dropped.
    """
    rooms = []
    for version, folder in levels(machine, "memory"):
        if version == 2:
            limits = [machine.number(f"{folder}/memory.{name}") for name in ("max", "high")]
            limit = min((number for number in limits if number is not None), default=None)
            used = machine.number(f"{folder}/memory.current")
            cache = ("inactive_file", "active_file")
        else:
            limit = machine.number(f"{folder}/memory.limit_in_bytes")
            used = machine.number(f"{folder}/memory.usage_in_bytes")
            cache = ("total_inactive_file", "total_active_file")
        if limit is not None and limit < UNLIMITED and used is not None:
            facts = machine.table(f"{folder}/memory.stat")
            taken = max(0, used - sum(facts.get(name, 0) for name in cache))
            rooms.append(Room(limit, max(0, limit - taken)))
    return min(rooms, key=lambda room: room.free, default=None)


def core_quota(machine: MachineFacts) -> float | None:
    """Return how many cores' worth of time the tightest quota grants, or None without one."""
    quotas = []
    for version, folder in levels(machine, "cpu"):
        if version == 2:
            words = (machine.text(f"{folder}/cpu.max") or "").split()
        else:
            words = [machine.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
        # "max" and -1 mean that there is no quota.
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def process_room(machine: MachineFacts) -> Room | None:
    """Return the tightest limit on processes and threads, or None without one."""
    rooms = []
    for _, folder in levels(machine, "pids"):
        limit, used = machine.number(f"{folder}/pids.max"), machine.number(f"{folder}/pids.current")
        if limit is not None and used is not None:
            rooms.append(Room(limit, max(0, limit - used)))
    return min(rooms, key=lambda room: room.free, default=None)
