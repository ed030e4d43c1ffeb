"""Decide which CPUs each rank of a machine runs on; the ranks bind themselves elsewhere.

ranks, Topology, CPUs that this process may use -> plan_binding -> a set of CPUs for each rank
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

from synk.transport.machines.topology import Cpu, Topology

BIND = ("core", "numa", "none")

CpuSet = frozenset[int]
_Item = TypeVar("_Item")


def plan_binding(n_ranks: int, bind: str, topology: Topology, allowed: Iterable[int]) -> tuple[CpuSet, ...]:
    """Return the CPUs of each rank of a machine, in rank order; none is empty, and all are allowed.

    Parameters
    ----------
    n_ranks : int
        Ranks on this machine.
    bind : {"core", "numa", "none"}
        "core" gives each rank whole cores of its own, adjacent cores to adjacent ranks. If there are more
        ranks than cores, ranks share cores as evenly as possible, and each has hardware threads of its own
        as long as there are enough. "numa" gives each rank all CPUs of one NUMA node, or of several nodes
        if there are fewer ranks than nodes; nodes get ranks in proportion to their CPUs. "none" lets every
        rank use all CPUs.
    topology : Topology
    allowed : iterable of int
        The CPUs that this process may use, as from ``os.sched_getaffinity``.

    Raises
    ------
    ValueError
        If ``bind`` is another word, or the topology has none of the allowed CPUs.
    """
    if bind not in BIND:
        raise ValueError(f"bind={bind!r} is none of 'core', 'numa' and 'none'")
    usable = set(allowed)
    cpus = sorted(
        (cpu for cpu in topology.cpus if cpu.number in usable),
        key=lambda cpu: (cpu.node, cpu.socket, cpu.core, cpu.number),
    )
    if not cpus:
        raise ValueError(f"none of the CPUs {sorted(usable)} is in the topology of this machine")
    if bind == "none":
        return (_numbers(cpus),) * n_ranks
    if bind == "numa":
        return _by_node(n_ranks, _grouped(cpus, "node"))
    return _by_core(n_ranks, _grouped(cpus, "core"))


def _by_core(n_ranks: int, cores: list[list[Cpu]]) -> tuple[CpuSet, ...]:
    if n_ranks <= len(cores):
        return tuple(_numbers(cpu for core in part for cpu in core) for part in _parts(cores, n_ranks))
    # The ranks that share a core split its hardware threads; if there are too few, each rank has all of them.
    shares = zip(cores, _parts(range(n_ranks), len(cores)), strict=True)
    bound: list[CpuSet] = []
    for core, ranks in shares:
        threads = _parts(core, len(ranks)) if len(ranks) <= len(core) else [core] * len(ranks)
        bound.extend(map(_numbers, threads))
    return tuple(bound)


def _by_node(n_ranks: int, nodes: list[list[Cpu]]) -> tuple[CpuSet, ...]:
    if n_ranks <= len(nodes):
        return tuple(_numbers(cpu for node in part for cpu in node) for part in _parts(nodes, n_ranks))
    # Split the list of all CPUs evenly over the ranks: a rank gets the node in which its share's middle lies.
    homes = [node for node in nodes for _ in node]
    return tuple(_numbers(homes[(2 * rank + 1) * len(homes) // (2 * n_ranks)]) for rank in range(n_ranks))


def _grouped(cpus: list[Cpu], by: str) -> list[list[Cpu]]:
    """Split sorted CPUs into runs that have the same value of the attribute ``by``."""
    return [list(group) for _, group in groupby(cpus, lambda cpu: getattr(cpu, by))]


def _parts(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    """Split a sequence into parts whose lengths differ by one at most."""
    ends = [len(items) * part // count for part in range(count + 1)]
    return [items[start:stop] for start, stop in pairwise(ends)]


def _numbers(cpus: Iterable[Cpu]) -> CpuSet:
    return frozenset(cpu.number for cpu in cpus)
