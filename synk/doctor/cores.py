"""Checks of cores: how many there are, how many this process may use, and who divides them."""

from __future__ import annotations

from synk.doctor.cgroups import core_quota
from synk.doctor.finding import Finding, Level, grade
from synk.doctor.machine import Machine

CPUS = "/sys/devices/system/cpu"

# What a run sets on every rank: `synk.device.cpu.THREAD_VARIABLES`, which needs PyTensor to be imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

# Tie threads to cores by number, the same in every rank.
PINNING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def affinity(machine: Machine) -> Finding:
    """One rank per core that this process may use is what ``fork()`` makes."""
    usable = len(machine.affinity)
    present = machine.text(f"{CPUS}/online") or ""
    online = len(parse_list(present)) or usable
    widen = f"taskset -c {present} python ..., docker run --cpuset-cpus={present} or Slurm's --cpus-per-task="
    return grade(
        "cores",
        f"{usable} usable of {online}" if usable < online else f"{usable}, all usable",
        (
            online == 1,
            Level.WARNING,
            "fork() makes one rank, and nothing runs in parallel; synk.fork(2) is good for trying only",
        ),
        (
            usable == 1,
            Level.WARNING,
            f"fork() makes one rank, and nothing runs in parallel; start the script by {widen}",
        ),
        (usable < online, Level.NOTE, f"fork() makes {usable} ranks; for more, start the script by {widen}"),
    )


def quota(machine: Machine) -> Finding:
    """``fork()`` counts cores; a quota of time stops all ranks when it is used up."""
    granted, usable = core_quota(machine), len(machine.affinity)
    if granted is None:
        return Finding(Level.OK, "core quota", "none by a control group")
    ranks = max(1, int(granted))
    return grade(
        "core quota",
        f"{granted:.3g} cores' worth of time on {usable} cores",
        (
            granted < usable,
            Level.WARNING,
            f"fork() would make {usable} ranks, halted in turns: call synk.fork({ranks}, threads=1), or "
            "raise the quota (docker run --cpus=, resources.limits.cpu in Kubernetes)",
        ),
    )


def core_sharing(machine: Machine) -> Finding:
    """Two hardware threads of one core share its arithmetic units."""
    texts = {
        core: machine.text(f"{CPUS}/cpu{core}/topology/thread_siblings_list") for core in machine.affinity
    }
    if None in texts.values():
        return Finding(Level.OK, "hyper-threading", "the kernel does not tell")
    usable, physical = len(texts), len(set(texts.values()))
    return grade(
        "hyper-threading",
        f"{usable} usable cores are {physical} physical ones"
        if physical < usable
        else "every usable core is a physical one",
        (
            physical < usable,
            Level.NOTE,
            f"products of matrices seldom gain from it: compare with synk.fork({physical}, threads=1)",
        ),
    )


def thread_variables(machine: Machine) -> Finding:
    """A run divides the cores itself: these variables are set anew on every rank."""
    given = [f"{name}={machine.environ[name]}" for name in THREAD_VARIABLES if name in machine.environ]
    return grade(
        "thread variables",
        ", ".join(given) or "none set",
        (
            bool(given),
            Level.NOTE,
            "a run sets them to cores // ranks on every rank, which is 1 after fork(); for other numbers "
            "call synk.fork(n, threads=N)",
        ),
    )


def pinning_variables(machine: Machine) -> Finding:
    """Pinned threads of all ranks end up on the same few cores."""
    given = {name: machine.environ[name] for name in PINNING_VARIABLES if name in machine.environ}
    free = {"false", "none", "disabled"}
    pinned = [name for name, value in given.items() if value.lower() not in free]
    return grade(
        "thread pinning",
        ", ".join(f"{name}={value}" for name, value in given.items()) or "none set",
        (
            bool(pinned),
            Level.WARNING,
            f"threads of all ranks would share the same cores: unset {' '.join(pinned)}",
        ),
    )


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list as the kernel writes them: ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


CHECKS = (affinity, quota, core_sharing, thread_variables, pinning_variables)
