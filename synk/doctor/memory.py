"""Checks of memory: ``/dev/shm``, limits of control groups, what is free."""

from __future__ import annotations

import os
import time

from synk.doctor.cgroups import memory_room
from synk.doctor.finding import Finding, Level, grade
from synk.doctor.machine import GIB, KIB, MIB, Machine, size

SHARED = "/dev/shm"
MODE = f"mode of {SHARED}"
DOCKER_DEFAULT = 64 * MIB
LEFT_SECONDS = 10.0  # a segment has its name for microseconds: one that old has lost its process
SMALL = GIB  # of shared memory: less holds toy data only


def shared_memory(machine: Machine) -> Finding:
    """All data sets and gradients live in ``/dev/shm``: it must be there, and large."""
    subject = "shared memory"
    mount = machine.mount_of(SHARED)
    if not machine.path(SHARED).is_dir():
        remedy = f"as root: mkdir -p {SHARED} && mount -t tmpfs -o mode=1777 tmpfs {SHARED}"
        return Finding(Level.PROBLEM, subject, f"there is no {SHARED}", remedy)
    space = machine.space(machine.path(SHARED))
    found = f"{size(space.free)} free of {size(space.total)} in {SHARED}"
    if space.total == DOCKER_DEFAULT:
        found += ", docker's default"
    kind = mount.kind if mount else "unknown"
    return grade(
        subject,
        found if kind == "tmpfs" else f"{found}, on {kind}",
        (space.total <= DOCKER_DEFAULT, Level.PROBLEM, _larger(machine)),
        (
            space.free <= DOCKER_DEFAULT,
            Level.PROBLEM,
            f"see what fills it: ls -l {SHARED}; {_larger(machine)}",
        ),
        (space.total < SMALL, Level.WARNING, _larger(machine)),
        (kind != "tmpfs", Level.WARNING, f"it is not memory; as root: mount -t tmpfs tmpfs {SHARED}"),
    )


def _larger(machine: Machine) -> str:
    """Say how to give shared memory half of what this process may have."""
    gib = max(1, _memory_of(machine) // 2 // GIB)
    docker = f"docker run --shm-size={gib}g (Kubernetes: an emptyDir of medium Memory at {SHARED})"
    mount = f"as root: mount -o remount,size={gib}g {SHARED}"
    return (
        f"start the container by {docker}" if machine.in_container() else f"{mount}; in a container: {docker}"
    )


def _memory_of(machine: Machine) -> int:
    room = memory_room(machine)
    total = machine.table("/proc/meminfo").get("MemTotal", 0) * KIB
    return min(total, room.limit) if room else total


def shared_memory_mode(machine: Machine) -> Finding:
    """Segments are files in ``/dev/shm`` for a moment, so it must let us write."""
    path = machine.path(SHARED)
    if not path.is_dir():
        return Finding(Level.NOTE, MODE, "not there", "see the finding on shared memory")
    mode = path.stat().st_mode & 0o7777
    sticky = not mode & 0o002 or bool(mode & 0o1000)
    return grade(
        MODE,
        f"{mode:o}, {'writable' if os.access(path, os.W_OK | os.X_OK) else 'not writable'} by this user",
        (not os.access(path, os.W_OK | os.X_OK), Level.PROBLEM, f"as root: chmod 1777 {SHARED}"),
        (not sticky, Level.NOTE, f"other users may delete files here; as root: chmod 1777 {SHARED}"),
    )


def left_segments(machine: Machine) -> Finding:
    """A process that is killed before it takes its segment's name away leaves it behind."""
    oldest = time.time() - LEFT_SECONDS
    names = machine.path(SHARED).glob("synk-*")
    left = [path for path in names if path.lstat().st_mtime < oldest]
    nbytes = sum(path.lstat().st_blocks * 512 for path in left)
    return grade(
        "left segments",
        f"{len(left)} in {SHARED}, {size(nbytes)}" if left else f"none in {SHARED}",
        (bool(left), Level.NOTE, f"processes were killed; no run needs these: rm {SHARED}/synk-*"),
    )


def huge_pages(machine: Machine) -> Finding:
    """Huge pages in shared memory are zeroed at the first write instead of beforehand."""
    mount = machine.mount_of(SHARED)
    options = mount.options if mount else ()
    asked = next((o.removeprefix("huge=") for o in options if o.startswith("huge=")), "never")
    words = (machine.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or "").split()
    system = next((word.strip("[]") for word in words if word.startswith("[")), "never")
    setting = system if system in ("force", "deny") else asked
    return grade(
        "huge pages",
        f"{setting} in {SHARED}",
        (
            setting not in ("never", "deny"),
            Level.NOTE,
            f"first writes to new Data may be slower; if so, as root: mount -o remount,huge=never {SHARED}",
        ),
    )


def memory_limit(machine: Machine) -> Finding:
    """Shared memory counts as the container's: beyond its limit the kernel kills a rank."""
    room = memory_room(machine)
    if room is None:
        return Finding(Level.OK, "memory limit", "none by a control group")
    raise_it = "raise it: docker run --memory=, resources.limits.memory in Kubernetes, --mem= in Slurm"
    shared = machine.space(machine.path(SHARED)).total if machine.path(SHARED).is_dir() else 0
    return grade(
        "memory limit",
        f"{size(room.free)} left of {size(room.limit)} by a control group",
        (room.free < GIB, Level.WARNING, raise_it),
        (
            shared > room.limit,
            Level.NOTE,
            f"{SHARED} ({size(shared)}) is larger: filling it gets a rank killed; keep Data under the limit",
        ),
    )


def memory(machine: Machine) -> Finding:
    """What the whole machine has left, and whether it swaps."""
    facts = machine.table("/proc/meminfo")
    total, free = facts["MemTotal"] * KIB, facts["MemAvailable"] * KIB
    swap = facts.get("SwapTotal", 0) * KIB
    swapped = swap - facts.get("SwapFree", 0) * KIB
    return grade(
        "memory",
        f"{size(free)} available of {size(total)}, {size(swapped)} of {size(swap)} swap in use",
        (
            free < GIB,
            Level.WARNING,
            "end other programs (ps aux --sort=-rss shows the largest), or use less Data",
        ),
        (
            swapped > 0.1 * total,
            Level.NOTE,
            "shared memory in swap is as slow as a disk; end other programs, then as root: "
            "swapoff -a && swapon -a",
        ),
    )


def overcommit(machine: Machine) -> Finding:
    """With strict accounting a fork is refused if all ranks' memory could not be copied."""
    policy = machine.number("/proc/sys/vm/overcommit_memory")
    facts = machine.table("/proc/meminfo")
    left = max(0, facts.get("CommitLimit", 0) - facts.get("Committed_AS", 0)) * KIB
    return grade(
        "overcommit",
        f"vm.overcommit_memory={policy}" + (f", {size(left)} left to promise" if policy == 2 else ""),
        (
            policy == 2,
            Level.WARNING,
            "fork() of a large program may fail; as root: sysctl vm.overcommit_memory=0, or raise "
            "vm.overcommit_ratio",
        ),
    )


CHECKS = (shared_memory, shared_memory_mode, left_segments, huge_pages, memory_limit, memory, overcommit)
