"""Checks of what a run needs from the kernel: processes, file descriptors, notice of deaths."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from synk.tools.doctor.cgroups import process_room
from synk.tools.doctor.finding import NOTE, PROBLEM, WARNING, Finding, grade
from synk.tools.doctor.machine import MachineFacts, size

DESCRIPTORS_PER_RANK = 8  # channel, pidfd, doorbell, and segments that are being sent
DESCRIPTORS_BESIDE = 256  # for libraries and files of the script
PROBE_SECONDS = 3.0
UNNAMED_SHARED = 0b10  # of the kinds of memory in a core dump, see core(5): segments have no name

# The child's child asks to be killed when its parent ends, and keeps standard output open: so reading that
# ends when it is killed, or after it has printed.
PARENT_DEATH_PROBE = """
import ctypes, os, signal, time
ready, told = os.pipe()
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    os.write(told, b"x")
    time.sleep({seconds})
    os.write(1, b"outlived its parent")
    os._exit(0)
os.read(ready, 1)
os._exit(0)
"""


def open_files(machine: MachineFacts) -> Finding:
    """Check the limit on file descriptors, of which the master needs a few for each rank."""
    soft, hard = machine.limits(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS_PER_RANK * len(machine.affinity) + DESCRIPTORS_BESIDE
    enough = max(1024, needed)
    return grade(
        "open files",
        f"{_limit(soft)} per process, a run on all cores may use {needed}",
        (_under(hard, needed), WARNING, f"as root, in /etc/security/limits.conf: * hard nofile {enough}"),
        (_under(soft, needed), WARNING, f"ulimit -n {enough}"),
    )


def process_limit(machine: MachineFacts) -> Finding:
    """Check limits on processes and threads: a run cannot start if the kernel refuses a fork."""
    soft, _ = machine.limits(resource.RLIMIT_NPROC)
    needed = 4 * len(machine.affinity) + 64
    enough = max(1024, needed)
    room = process_room(machine)
    left = f", {room.free} left of {room.limit} by a control group" if room else ""
    docker = f"docker run --pids-limit={enough}, or TasksMax={enough} in the systemd unit"
    return grade(
        "processes",
        f"{_limit(soft)} per user{left}",
        (machine.uid != 0 and _under(soft, needed), WARNING, f"ulimit -u {enough}"),
        (room is not None and room.free < needed, WARNING, docker),
    )


def size_limits(machine: MachineFacts) -> Finding:
    """Check limits on the size of files and of address space, which also limit segments."""
    limits = {"-f": machine.limits(resource.RLIMIT_FSIZE)[0], "-v": machine.limits(resource.RLIMIT_AS)[0]}
    given = {f"ulimit {option}": nbytes for option, nbytes in limits.items() if nbytes is not None}
    lift = " && ".join(f"{command} unlimited" for command in given)
    return grade(
        "file and address size",
        ", ".join(f"{command}: {size(nbytes)}" for command, nbytes in given.items()) or "unlimited",
        (bool(given), WARNING, f"larger Data cannot be made: {lift}"),
    )


def core_dumps(machine: MachineFacts) -> Finding:
    """Check the master's core dump, which may hold all shared memory; workers write none."""
    soft, _ = machine.limits(resource.RLIMIT_CORE)
    with_segments = int(machine.text("/proc/self/coredump_filter") or "0", 16) & UNNAMED_SHARED
    remedy = (
        "a crash of the master writes out shared memory, too: ulimit -c 0, or leave it out by "
        "echo 0x31 > /proc/self/coredump_filter in the shell that starts the script"
    )
    masters = "none of the master" if soft == 0 else f"of the master {_limit(soft, size)}"
    return grade(
        "core dumps", f"none of workers, {masters}", (soft != 0 and bool(with_segments), NOTE, remedy)
    )


def locked_memory(machine: MachineFacts) -> Finding:
    """Check the limit on locked memory, which only transfers over InfiniBand need."""
    soft, _ = machine.limits(resource.RLIMIT_MEMLOCK)
    fabric = machine.path("/sys/class/infiniband")
    cards = sorted(os.listdir(fabric)) if fabric.is_dir() else []
    remedy = "transfers between machines need more: ulimit -l unlimited (docker run --ulimit memlock=-1)"
    found = f"{_limit(soft, size)}, " + (f"InfiniBand: {', '.join(cards)}" if cards else "no InfiniBand")
    return grade("locked memory", found, (bool(cards) and soft is not None, NOTE, remedy))


def _limit(value: int | None, show: Callable[[int], str] = str) -> str:
    return "unlimited" if value is None else show(value)


def _under(value: int | None, needed: int) -> bool:
    return value is not None and value < needed


def death_watch(machine: MachineFacts) -> Finding:
    """Check that pidfds work, by which a run notices deaths, and eventfds, by which it wakes ranks."""
    missing = []
    for call, argument in ((os.pidfd_open, os.getpid()), (os.eventfd, 0)):
        try:
            os.close(call(argument))
        except OSError as error:
            missing.append(f"{call.__name__}: {error.strerror}")
    remedy = (
        "use Linux 5.3 or newer; in a sandbox (gVisor, an old seccomp profile) permit these calls: "
        "docker run --runtime=runc, or --security-opt seccomp=unconfined"
    )
    return grade("pidfd and eventfd", "; ".join(missing) or "both work", (bool(missing), PROBLEM, remedy))


def parent_death(machine: MachineFacts) -> Finding:
    """Check that the kernel kills workers when their master dies."""
    script = PARENT_DEATH_PROBE.format(seconds=PROBE_SECONDS / 2)
    command = [sys.executable, "-I", "-S", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PROBE_SECONDS)
    killed = done.returncode == 0 and not done.stdout
    failure = done.stdout or done.stderr.strip()[-200:] or f"exit code {done.returncode}"
    remedy = (
        "if the script is killed, workers may live on: end those that `ps --ppid 1` shows; in a sandbox "
        "(gVisor), use docker run --runtime=runc"
    )
    return grade("death with the parent", "works" if killed else failure, (not killed, WARNING, remedy))


def threads_at_start(machine: MachineFacts) -> Finding:
    """Check for threads at start: a lock that one holds during the fork stays locked in the workers."""
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    remedy = (
        "something starts them with Python itself: look at sitecustomize, .pth files (python -v), "
        "PYTHONSTARTUP, debuggers and tracers"
    )
    return grade(
        "threads at start", ", ".join(names) or "none but the main thread", (bool(names), WARNING, remedy)
    )


def signals_at_start(machine: MachineFacts) -> Finding:
    """Check that SIGCHLD is not ignored, since then the kernel does not keep how a worker died."""
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    remedy = "causes of death are lost: start the script by `env --default-signal=CHLD python ...`"
    return grade("SIGCHLD", "ignored" if ignored else "not ignored", (ignored, WARNING, remedy))


def debuggers(machine: MachineFacts) -> Finding:
    """Check whether a debugger may attach to a rank that hangs."""
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope") or 0
    never = "py-spy and gdb cannot attach to a rank until the machine starts with a lower ptrace_scope"
    as_root = "py-spy and gdb attach to ranks as root only: sudo py-spy dump --pid PID"
    return grade(
        "debuggers",
        f"kernel.yama.ptrace_scope={scope}",
        (scope == 3, NOTE, never),
        (scope in (1, 2) and machine.uid != 0, NOTE, as_root),
    )


CHECKS = (
    open_files,
    process_limit,
    size_limits,
    core_dumps,
    locked_memory,
    death_watch,
    parent_death,
    threads_at_start,
    signals_at_start,
    debuggers,
)
