"""What a process holds that outlives a careless test, and how to tell when something new stays.

Four kinds: shared-memory segments and semaphores (files in ``/dev/shm``), child processes, file descriptors
and Python threads. Native threads are not counted: BLAS and OpenMP pools start lazily and stay, and no code
of ours starts others.

    take() -> Snapshot before the test -> leftovers(before) after it -> {kind: descriptions}

Imports the standard library only: Linux's ``/proc`` is the source.
"""

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("segments", "children", "descriptors", "threads")

SHARED_MEMORY = Path("/dev/shm")

# Opened once by whoever first needs them and kept: the kernel's random source, and CUDA's handle of a GPU.
KEPT_OPEN = ("/dev/urandom", "/dev/nvidia")


@dataclass(frozen=True)
class Process:
    """One row of the process table."""

    pid: int
    started: int  # clock ticks since boot: tells a process from a later one with the same pid
    parent: int
    group: int
    zombie: bool

    def __str__(self) -> str:
        return f"pid {self.pid}" + (" (zombie: ended, but nobody waited for it)" if self.zombie else "")


@dataclass(frozen=True)
class Snapshot:
    """What this process holds at one moment."""

    segments: frozenset[str]  # names in /dev/shm
    children: frozenset[tuple[int, int]]  # (pid, started) of descendants and orphaned descendants
    descriptors: frozenset[tuple[int, str]]  # (number, what it refers to)
    threads: frozenset[threading.Thread]


def take() -> Snapshot:
    """Look at what this process holds now."""
    return Snapshot(
        segments=frozenset(os.listdir(SHARED_MEMORY)),
        children=frozenset((child.pid, child.started) for child in children()),
        descriptors=frozenset(descriptors()),
        threads=frozenset(threading.enumerate()),
    )


def leftovers(
    before: Snapshot, excused: frozenset[str] = frozenset(), grace: float = 2.0
) -> dict[str, list[str]]:
    """Describe, by kind, what is there now and was not before.

    Parameters
    ----------
    before : Snapshot
        Taken when the test began.
    excused : frozenset of str
        Kinds not to look at.
    grace : float
        Seconds in which what is on its way out may go; spent only when there is something.

    Returns
    -------
    dict of str to list of str
        Empty when nothing new stays.
    """
    found = compare(before, excused)
    deadline = time.monotonic() + grace
    if found:
        gc.collect()  # a traceback may still hold a frame that holds an object that holds a descriptor
        found = compare(before, excused)
    while found and time.monotonic() < deadline:
        time.sleep(0.02)
        found = compare(before, excused)
    return found


def compare(before: Snapshot, excused: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    """Do what ``leftovers`` does, without patience."""
    now = take()
    opened = sorted(now.descriptors - before.descriptors)
    found = {
        "segments": ours(now.segments - before.segments),
        "children": [str(child) for child in children() if (child.pid, child.started) not in before.children],
        "descriptors": [f"{number} -> {target}" for number, target in opened],
        "threads": [repr(thread) for thread in now.threads - before.threads if thread.is_alive()],
    }
    return {kind: those for kind, those in found.items() if those and kind not in excused}


def end_children(before: Snapshot) -> None:
    """Kill and reap the children that ``compare`` finds, so no later test and no shell waits for them."""
    for child in children():
        if (child.pid, child.started) not in before.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            if child.parent == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)


def descriptors() -> Iterator[tuple[int, str]]:
    """Yield the open descriptors of this process: number and what it refers to."""
    for number in os.listdir("/proc/self/fd"):
        # The descriptor that lists the folder is closed by now.
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.startswith(KEPT_OPEN):
                yield int(number), target


def children() -> list[Process]:
    """List the descendants of this process, and orphans of its process group: their parent is gone."""
    table = {process.pid: process for process in processes()}
    return [process for process in table.values() if descends(process, table) or orphaned(process, table)]


def descends(process: Process, table: dict[int, Process]) -> bool:
    """Say whether this process is an ancestor of the other."""
    parent = table.get(process.parent)
    while parent is not None:
        if parent.pid == os.getpid():
            return True
        parent = table.get(parent.parent)
    return False


def orphaned(process: Process, table: dict[int, Process]) -> bool:
    """Say whether a process of our group has lost its parent, and with it its way back to us.

    The leader of the group has a parent outside as well, and so has this process when it leads. An orphan
    that has ended is for the system to reap.
    """
    parent = table.get(process.parent)
    outside = parent is None or parent.group != process.group
    leads = process.pid in (process.group, os.getpid())
    return process.group == os.getpgrp() and outside and not leads and not process.zombie


def processes() -> Iterator[Process]:
    """Yield the process table."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # Processes come and go while we read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            # The name, in parentheses, may hold anything: the numbers begin after the last one. See proc(5).
            fields = stat[stat.rindex(")") + 2 :].split()
            yield Process(int(pid), int(fields[19]), int(fields[1]), int(fields[2]), fields[0] == "Z")


def ours(names: frozenset[str]) -> list[str]:
    """Leave out the segments that a stranger has mapped: another run on the same machine."""
    if not names:
        return []
    family = {os.getpid(), *(child.pid for child in children())}
    foreign: set[str] = set()
    for process in processes():
        if process.pid not in family:
            # Other users' processes are closed to us.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                foreign |= {name for name in names if f"{SHARED_MEMORY}/{name}\n" in maps}
    return sorted(names - foreign)
