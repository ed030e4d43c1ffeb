"""Find resources that a test has leaked: descriptors, segments, threads, children.

Four kinds: shared-memory segments and semaphores (files in ``/dev/shm``), child processes, file descriptors
and Python threads. Native threads are not counted: BLAS and OpenMP pools start lazily and stay, and no code
of ours starts others.

    take() -> Snapshot before the test -> leftovers(before) after it -> {kind: descriptions}
"""

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("segments", "children", "descriptors", "threads")

SHARED_MEMORY = Path("/dev/shm")

# Opened once by whoever first needs them and kept: the kernel's random source, and CUDA's handle of a GPU.
KEPT_OPEN = ("/dev/urandom", "/dev/nvidia")


@dataclass(frozen=True)
class Process:
    """One row of the process table; rows of the same process at different times are equal."""

    pid: int
    started: int  # clock ticks since boot: tells a process from a later one with the same pid
    parent: int = field(compare=False)
    group: int = field(compare=False)
    zombie: bool = field(compare=False)

    def __str__(self) -> str:
        return f"pid {self.pid}" + (" (zombie: ended, but nobody waited for it)" if self.zombie else "")


@dataclass(frozen=True)
class Snapshot:
    """The things that this process holds at one moment."""

    segments: frozenset[str]  # names in /dev/shm
    children: frozenset[Process]  # descendants and orphaned descendants
    descriptors: frozenset[tuple[int, str]]  # (number, what it refers to)
    threads: frozenset[threading.Thread]


def take() -> Snapshot:
    """Return a snapshot of the resources that this process holds."""
    return Snapshot(
        segments=frozenset(os.listdir(SHARED_MEMORY)),
        children=frozenset(children()),
        descriptors=frozenset(descriptors()),
        threads=frozenset(threading.enumerate()),
    )


def leftovers(
    before: Snapshot, excused: frozenset[str] = frozenset(), grace: float = 2.0
) -> dict[str, list[str]]:
    """Describe, by kind, the resources that are held now and were not before.

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
    """Return the same as ``leftovers``, without waiting for resources to be released."""
    now = take()
    opened = sorted(now.descriptors - before.descriptors)
    found = {
        "segments": ours(now.segments - before.segments),
        "children": [str(child) for child in now.children - before.children],
        "descriptors": [f"{number} -> {target}" for number, target in opened],
        "threads": [repr(thread) for thread in now.threads - before.threads if thread.is_alive()],
    }
    return {kind: those for kind, those in found.items() if those and kind not in excused}


def end_children(before: Snapshot) -> None:
    """Kill and reap the children that ``compare`` finds, so no later test and no shell waits for them."""
    for child in children():
        if child not in before.children:
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
    """List the descendants of this process, and orphans of its process group: their parent is gone.

    Looked at before and after every test, so the table of all processes is not read for it.
    """
    found = {pid: process_of(pid) for pid in descendants(os.getpid())}
    found |= {process.pid: process for process in orphans()}
    return [process for process in found.values() if process is not None]


def descendants(pid: int) -> Iterator[int]:
    """Yield the pids of a process's children, of their children, and so on."""
    # Processes come and go while we read.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, read(f"/proc/{pid}/task/{thread}/children").split()):
                yield child
                yield from descendants(child)


def orphans() -> Iterator[Process]:
    """Yield the processes of our group that have lost their parent, and with it their way back to us.

    The leader of the group has a parent outside as well, and so has this process when it leads. An orphan
    that has ended is for the system to reap.
    """
    group = os.getpgrp()
    for pid in pids():
        if pid in (group, os.getpid()) or group_of(pid) != group:
            continue
        process = process_of(pid)
        if process and not process.zombie and group_of(process.parent) != group:
            yield process


def processes() -> Iterator[Process]:
    """Yield the process table."""
    yield from filter(None, map(process_of, pids()))


def pids() -> list[int]:
    """Return the pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def group_of(pid: int) -> int | None:
    """Return the process group of a process, None when it has gone; of parent 0, outside of us all, too."""
    try:
        return os.getpgid(pid) if pid else None
    except ProcessLookupError:
        return None


def process_of(pid: int) -> Process | None:
    """Return a process's row of the table, or None when it has gone."""
    try:
        stat = read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything: the numbers begin after the last one. See proc(5).
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), fields[0] == "Z")


def read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def ours(names: frozenset[str]) -> list[str]:
    """Return segments without those that an unrelated process has mapped, as of another run."""
    if not names:
        return []
    family = {os.getpid(), *(child.pid for child in children())}
    foreign: set[str] = set()
    for pid in pids():
        if pid not in family:
            # Other users' processes are closed to us.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                maps = read(f"/proc/{pid}/maps")
                foreign |= {name for name in names if f"{SHARED_MEMORY}/{name}\n" in maps}
    return sorted(names - foreign)
