"""Read the limits of control groups on this process, by a container or a batch system.

MachineFacts -> cgroups_of -> memory_room, core_quota, process_room
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synk.tools.doctor.machine import MachineFacts
from synk.transport.memory.cgroups import UNLIMITED, VERSIONS, Cgroup, find_cgroups


class Room(NamedTuple):
    """A limit on memory or processes, and how much of it is left."""

    limit: int
    free: int


def cgroups_of(machine: MachineFacts, controller: str) -> Iterator[Cgroup]:
    """Yield every control group that contains this process, innermost first; see `find_cgroups`."""
    membership, mounts = (machine.text(f"/proc/self/{name}") or "" for name in ("cgroup", "mountinfo"))
    for cgroup in find_cgroups(membership, mounts, controller):
        if machine.path(cgroup.folder).is_dir():
            yield cgroup


def memory_room(machine: MachineFacts) -> Room | None:
    """Return the tightest memory limit in bytes, or None without one.

    The kernel counts its cache of files as used; it is counted as free here, since it can be dropped.
    """
    rooms = []
    for cgroup in cgroups_of(machine, "memory"):
        facts = machine.table(f"{cgroup.folder}/memory.stat")
        cached = sum(facts.get(name, 0) for name in cgroup.version.file_cache)
        for ceiling in cgroup.version.ceilings:
            limit, used = (machine.number(f"{cgroup.folder}/{name}") for name in ceiling[:2])
            if limit is not None and limit < UNLIMITED and used is not None and not ceiling.counts_swap:
                rooms.append(Room(limit, max(0, limit - max(0, used - cached))))
    return min(rooms, key=lambda room: room.free, default=None)


def core_quota(machine: MachineFacts) -> float | None:
    """Return how many cores' worth of time the tightest quota grants, or None without one."""
    quotas = []
    for cgroup in cgroups_of(machine, "cpu"):
        names = (
            ("cpu.max",)
            if cgroup.version is VERSIONS["cgroup2"]
            else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        )
        words = " ".join(machine.text(f"{cgroup.folder}/{name}") or "" for name in names).split()
        # "max" and -1 mean that there is no quota.
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def process_room(machine: MachineFacts) -> Room | None:
    """Return the tightest limit on processes and threads, or None without one."""
    rooms = []
    for cgroup in cgroups_of(machine, "pids"):
        limit, used = (machine.number(f"{cgroup.folder}/pids.{name}") for name in ("max", "current"))
        if limit is not None and used is not None:
            rooms.append(Room(limit, max(0, limit - used)))
    return min(rooms, key=lambda room: room.free, default=None)
