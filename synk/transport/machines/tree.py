"""Show where the ranks of a run are: a tree of machines, sockets, NUMA nodes and ranks.

a Placement for each machine -> tree -> text
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from synk.transport.machines.topology import Cpu, GpuOnBus, Topology, write_list


@dataclass(frozen=True)
class PlacedRank:
    """A rank, and what it computes on."""

    rank: int  # of the whole run
    cpus: frozenset[int]  # that it may run on; none where its process has ended
    device: str = ""  # a GPU's name


@dataclass(frozen=True)
class PlacedMachine:
    """A machine with its ranks, in rank order."""

    host: str
    topology: Topology
    ranks: Sequence[PlacedRank]


def tree(machines: Iterable[PlacedMachine]) -> str:
    """Return a line for each machine, socket, NUMA node, GPU, and for ranks that run on the same CPUs.

    A rank stands under the smallest of these that has all its CPUs.
    """
    return "\n".join(line for machine in machines for line in _machine(machine))


def _machine(machine: PlacedMachine) -> Iterator[str]:
    topology = machine.topology
    sockets = _grouped(topology.cpus, "socket")
    nodes_of = [_grouped(socket, "node") for socket in sockets]
    parts = [node for nodes in nodes_of for node in nodes]
    groups = [*map(_numbers, parts), *map(_numbers, sockets)]
    homes = {placed.rank: _home(placed, groups) for placed in machine.ranks}

    def at(home: frozenset[int] | None, indent: str) -> Iterator[str]:
        yield from _ranks([placed for placed in machine.ranks if homes[placed.rank] == home], indent)

    yield f"{machine.host}: {_counted(len(sockets), 'socket')}, {_cores(topology.cpus)}"
    yield from at(None, "  ")
    for socket, nodes in zip(sockets, nodes_of, strict=True):
        yield f"  socket {socket[0].socket}"
        if len(nodes) > 1:
            yield from at(_numbers(socket), "    ")
        for node in nodes:
            number = node[0].node
            yield f"    NUMA node {number}: {_cores(node)}, CPUs {write_list(_numbers(node))}"
            if node is next(part for part in parts if part[0].node == number):  # one may be on two sockets
                yield from (f"      GPU {gpu.address}" for gpu in topology.gpus if gpu.node == number)
            yield from at(_numbers(node), "      ")
    yield from (f"  NUMA node {number}: memory only" for number in topology.bare_nodes)
    inhabited = {cpu.node for cpu in topology.cpus}
    yield from (f"  GPU {gpu.address}, {_far(gpu)}" for gpu in topology.gpus if gpu.node not in inhabited)


def _far(gpu: GpuOnBus) -> str:
    return "NUMA node not known" if gpu.node is None else f"NUMA node {gpu.node}"


def _home(placed: PlacedRank, groups: Sequence[frozenset[int]]) -> frozenset[int] | None:
    """Return the first group, the smaller ones come first, with all CPUs of a rank; None for the machine."""
    return next((group for group in groups if placed.cpus and placed.cpus <= group), None)


def _ranks(those: Sequence[PlacedRank], indent: str) -> Iterator[str]:
    for (cpus, device), group in groupby(those, lambda placed: (placed.cpus, placed.device)):
        ranks = [placed.rank for placed in group]
        where = f"CPUs {write_list(cpus)}" if cpus else "ended"
        name = "rank" if len(ranks) == 1 else "ranks"
        yield f"{indent}{name} {write_list(ranks)}: {', '.join(filter(None, [where, device]))}"


def _cores(cpus: Sequence[Cpu]) -> str:
    """Return ``4 cores, 8 threads``, or ``4 cores`` where each has one."""
    cores = len({cpu.core for cpu in cpus})
    threads = f", {len(cpus)} threads" if len(cpus) > cores else ""
    return _counted(cores, "core") + threads


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")


def _grouped(cpus: Sequence[Cpu], by: str) -> list[list[Cpu]]:
    numbers = sorted({getattr(cpu, by) for cpu in cpus})
    return [[cpu for cpu in cpus if getattr(cpu, by) == number] for number in numbers]


def _numbers(cpus: Iterable[Cpu]) -> frozenset[int]:
    return frozenset(cpu.number for cpu in cpus)
