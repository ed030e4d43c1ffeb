"""Checks of memory: ``/dev/shm``, limits of control groups, and free memory."""

from __future__ import annotations

import os
import time

from synk.tools.doctor.cgroups import memory_room
from synk.tools.doctor.finding import NOTE, PROBLEM, WARNING, Finding, grade
from synk.tools.doctor.machine import GIB, KIB, MIB, MachineFacts, size

SHARED = "/dev/shm"
MODE = f"mode of {SHARED}"
DOCKER_DEFAULT = 64 * MIB
LEFT_SECONDS = 10.0  # a segment has a name for microseconds only; one this old was left by a killed process
SMALL = GIB  # of shared memory: less holds toy data only


def shared_memory(machine: MachineFacts) -> Finding:
    """Check that ``/dev/shm`` is there and large: all data sets and gradients live in it."""
    subject = "shared memory"
    mount = machine.mount_of(SHARED)
    if not machine.path(SHARED).is_dir():
        remedy = f"as root: mkdir -p {SHARED} && mount -t tmpfs -o mode=1777 tmpfs {SHARED}"
        return Finding(PROBLEM, subject, f"there is no {SHARED}", remedy)
    space, enlarge = machine.space(machine.path(SHARED)), _enlarge(machine)
    found = f"{size(space.free)} free of {size(space.total)} in {SHARED}"
    if space.total == DOCKER_DEFAULT:
        found += ", docker's default"
    kind = mount.kind if mount else "unknown"
    return grade(
        subject,
        found if kind == "tmpfs" else f"{found}, on {kind}",
        (space.total <= DOCKER_DEFAULT, PROBLEM, enlarge),
        (space.free <= DOCKER_DEFAULT, PROBLEM, f"see what fills it: ls -l {SHARED}; {enlarge}"),
        (space.total < SMALL, WARNING, enlarge),
        (kind != "tmpfs", WARNING, f"it is not memory; as root: mount -t tmpfs tmpfs {SHARED}"),
    )


def _enlarge(machine: MachineFacts) -> str:
    """Return advice on how to make shared memory half as large as the memory that this process may use."""
    room, total = memory_room(machine), machine.table("/proc/meminfo").get("MemTotal", 0) * KIB
    gib = max(1, (min(total, room.limit) if room else total) // 2 // GIB)
    docker = f"docker run --shm-size={gib}g (Kubernetes: an emptyDir of medium Memory at {SHARED})"
    if machine.in_container():
        return f"start the container by {docker}"
    return f"as root: mount -o remount,size={gib}g {SHARED}; in a container: {docker}"


def shared_memory_mode(machine: MachineFacts) -> Finding:
    """Check that this user may write to ``/dev/shm``, where segments are files for a moment."""
    path = machine.path(SHARED)
    if not path.is_dir():
        return Finding(NOTE, MODE, "not there", "see the finding on shared memory")
    mode, writable = path.stat().st_mode & 0o7777, os.access(path, os.W_OK | os.X_OK)
    sticky = not mode & 0o002 or bool(mode & 0o1000)
    return grade(
        MODE,
        f"{mode:o}, {'writable' if writable else 'not writable'} by this user",
        (not writable, PROBLEM, f"as root: chmod 1777 {SHARED}"),
        (not sticky, NOTE, f"other users may delete files here; as root: chmod 1777 {SHARED}"),
    )


def left_segments(machine: MachineFacts) -> Finding:
    """Check for segments that have kept their names because their processes were killed."""
    oldest = time.time() - LEFT_SECONDS
    names = machine.path(SHARED).glob("synk-*")
    left = [path for path in names if path.lstat().st_mtime < oldest]
    nbytes = sum(path.lstat().st_blocks * 512 for path in left)
    return grade(
        "left segments",
        f"{len(left)} in {SHARED}, {size(nbytes)}" if left else f"none in {SHARED}",
        (bool(left), NOTE, f"processes were killed; no run needs these: rm {SHARED}/synk-*"),
    )


def huge_pages(machine: MachineFacts) -> Finding:
    """Check for huge pages in shared memory, which make first writes slow, since each is zeroed then."""
    mount = machine.mount_of(SHARED)
    options = mount.options if mount else ()
    asked = next((o.removeprefix("huge=") for o in options if o.startswith("huge=")), "never")
    words = (machine.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or "").split()
    system = next((word.strip("[]") for word in words if word.startswith("[")), "never")
    setting = system if system in ("force", "deny") else asked
    remedy = f"first writes to new Data may be slower; if so, as root: mount -o remount,huge=never {SHARED}"
    return grade("huge pages", f"{setting} in {SHARED}", (setting not in ("never", "deny"), NOTE, remedy))


def memory_limit(machine: MachineFacts) -> Finding:
    """Check the container's memory limit, which includes shared memory; beyond it the kernel kills a rank."""
    room = memory_room(machine)
    if room is None:
        return grade("memory limit", "none by a control group")
    raise_it = "raise it: docker run --memory=, resources.limits.memory in Kubernetes, --mem= in Slurm"
    shared = machine.space(machine.path(SHARED)).total if machine.path(SHARED).is_dir() else 0
    larger = f"{SHARED} ({size(shared)}) is larger: filling it gets a rank killed; keep Data under the limit"
    return grade(
        "memory limit",
        f"{size(room.free)} left of {size(room.limit)} by a control group",
        (room.free < GIB, WARNING, raise_it),
        (shared > room.limit, NOTE, larger),
    )


def memory(machine: MachineFacts) -> Finding:
    """Check how much memory the whole machine has left, and whether it swaps."""
    facts = machine.table("/proc/meminfo")
    total, free = facts["MemTotal"] * KIB, facts["MemAvailable"] * KIB
    swap = facts.get("SwapTotal", 0) * KIB
    swapped = swap - facts.get("SwapFree", 0) * KIB
    swapoff = "end other programs, then as root: swapoff -a && swapon -a"
    return grade(
        "memory",
        f"{size(free)} available of {size(total)}, {size(swapped)} of {size(swap)} swap in use",
        (free < GIB, WARNING, "end other programs (ps aux --sort=-rss shows the largest), or use less Data"),
        (swapped > 0.1 * total, NOTE, f"shared memory in swap is as slow as a disk; {swapoff}"),
    )


def overcommit(machine: MachineFacts) -> Finding:
    """Check for strict accounting, where the kernel refuses a fork unless all memory could be copied."""
    policy = machine.number("/proc/sys/vm/overcommit_memory")
    facts = machine.table("/proc/meminfo")
    left = max(0, facts.get("CommitLimit", 0) - facts.get("Committed_AS", 0)) * KIB
    strict, found = policy == 2, f"vm.overcommit_memory={policy}"
    relax = "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio"
    if strict:
        found += f", {size(left)} left to promise"
    return grade(
        "overcommit", found, (strict, WARNING, f"fork() of a large program may fail; as root: {relax}")
    )


CHECKS = (shared_memory, shared_memory_mode, left_segments, huge_pages, memory_limit, memory, overcommit)
