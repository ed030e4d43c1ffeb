"""Checks of cores: how many there are, how many this process may use, and what else limits them."""

from __future__ import annotations

from synk.tools.doctor.cgroups import core_quota
from synk.tools.doctor.finding import NOTE, WARNING, Finding, grade
from synk.tools.doctor.machine import MachineFacts
from synk.transport.machines.topology import parse_list, read_topology, write_list

CPUS = "/sys/devices/system/cpu"

# A run sets these on every rank: `synk.run.device.cpu.THREAD_VARIABLES`, which needs PyTensor to be imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")

# Variables that bind threads to cores by number, in every rank to the same cores.
PINNING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def affinity(machine: MachineFacts) -> Finding:
    """Check how many cores this process may use: ``fork()`` makes one rank for each."""
    usable = len(machine.affinity)
    present = machine.text(f"{CPUS}/online") or ""
    online = len(parse_list(present)) or usable
    widen = f"taskset -c {present} python ..., docker run --cpuset-cpus={present} or Slurm's --cpus-per-task="
    alone = "fork() makes one rank, and nothing runs in parallel;"
    return grade(
        "cores",
        f"{usable} usable of {online}" if usable < online else f"{usable}, all usable",
        (online == 1, WARNING, f"{alone} synk.fork(2) is good for trying only"),
        (usable == 1, WARNING, f"{alone} start the script by {widen}"),
        (usable < online, NOTE, f"fork() makes {usable} ranks; for more, start the script by {widen}"),
    )


def quota(machine: MachineFacts) -> Finding:
    """Check the quota of time: ``fork()`` counts cores, and all ranks stop when the quota is used up."""
    granted, usable = core_quota(machine), len(machine.affinity)
    if granted is None:
        return grade("core quota", "none by a control group")
    remedy = (
        f"fork() would make {usable} ranks, halted in turns: call synk.fork({max(1, int(granted))}, "
        "threads=1), or raise the quota (docker run --cpus=, resources.limits.cpu in Kubernetes)"
    )
    found = f"{granted:.3g} cores' worth of time on {usable} cores"
    return grade("core quota", found, (granted < usable, WARNING, remedy))


def core_sharing(machine: MachineFacts) -> Finding:
    """Check for hyper-threading, where two cores are hardware threads of one physical core."""
    texts = [machine.text(f"{CPUS}/cpu{core}/topology/thread_siblings_list") for core in machine.affinity]
    if None in texts:
        return grade("hyper-threading", "the kernel does not tell")
    usable, physical = len(texts), len(set(texts))
    shared = physical < usable
    all_own = "every usable core is a physical one"
    return grade(
        "hyper-threading",
        f"{usable} usable cores are {physical} physical ones" if shared else all_own,
        (
            shared,
            NOTE,
            f"products of matrices seldom gain from it: compare with synk.fork({physical}, threads=1)",
        ),
    )


def numa_nodes(machine: MachineFacts) -> Finding:
    """Check for cores on several NUMA nodes, which are slow to read each other's memory, and far GPUs."""
    topology = read_topology(machine.root, machine.affinity)
    usable = {cpu.node for cpu in topology.cpus if cpu.number in machine.affinity}
    far = [f"{gpu.address} (node {gpu.node})" for gpu in topology.gpus if gpu.node not in usable | {None}]
    listed, one = write_list(usable), f"--cpunodebind={min(usable)} --membind={min(usable)}"
    return grade(
        "NUMA nodes",
        f"usable cores are on nodes {listed}" if len(usable) > 1 else "all usable cores are on one",
        (bool(far), WARNING, f"no usable core is near GPU {', '.join(far)}: start the script on cores there"),
        (
            len(usable) > 1,
            NOTE,
            f"ranks are not bound to cores; a run for which one node is enough: numactl {one} python ...",
        ),
    )


def thread_variables(machine: MachineFacts) -> Finding:
    """Check for variables that have no effect, because a run sets them on every rank to divide the cores."""
    given = [f"{name}={machine.environ[name]}" for name in THREAD_VARIABLES if name in machine.environ]
    remedy = (
        "a run sets them to cores // ranks on every rank, which is 1 after fork(); for other numbers "
        "call synk.fork(n, threads=N)"
    )
    return grade("thread variables", ", ".join(given) or "none set", (bool(given), NOTE, remedy))


def pinning_variables(machine: MachineFacts) -> Finding:
    """Check for variables that pin threads, by which all ranks would use the same few cores."""
    given = {name: machine.environ[name] for name in PINNING_VARIABLES if name in machine.environ}
    pinned = [name for name, value in given.items() if value.lower() not in ("false", "none", "disabled")]
    remedy = f"threads of all ranks would share the same cores: unset {' '.join(pinned)}"
    found = ", ".join(f"{name}={value}" for name, value in given.items()) or "none set"
    return grade("thread pinning", found, (bool(pinned), WARNING, remedy))


CHECKS = (affinity, quota, core_sharing, numa_nodes, thread_variables, pinning_variables)
