"""Read from /sys where a machine's CPUs are: cores, sockets and NUMA nodes, and the node of each GPU.

    /sys -> read_topology -> Topology

In a container or a virtual machine the kernel may tell less. The rest is taken for the simplest then: a core
for each CPU, one socket, one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
PCI = "sys/bus/pci/devices"

DISPLAY = "0x03"  # the class of GPUs, that of servers without an output included
NVIDIA = "0x10de"


@dataclass(frozen=True)
class Cpu:
    """A core, or one of its hardware threads: one of the places where the kernel runs processes."""

    number: int
    core: int  # the lowest number of its hardware threads
    socket: int
    node: int


@dataclass(frozen=True)
class GpuOnBus:
    """A GPU by its place on the PCI bus."""

    address: str  # 0000:3b:00.0
    node: int | None  # None where the kernel does not know


@dataclass(frozen=True)
class Topology:
    """The CPUs of a machine, in the order of their numbers, and its GPUs."""

    cpus: tuple[Cpu, ...]
    gpus: tuple[GpuOnBus, ...] = ()
    bare_nodes: tuple[int, ...] = ()  # NUMA nodes that have memory, and no CPU


def read_topology(root: Path = Path("/"), allowed: Iterable[int] = ()) -> Topology:
    """Return the topology of the machine whose /sys is under ``root``.

    It has the CPUs that are online, and those that are allowed, as from ``os.sched_getaffinity``: the /sys
    of a container may list others than the process has, or none.
    """
    node_of = dict(_nodes(root))
    numbers = parse_list(_text(root / CPUS / "online")).union(allowed)
    cpus = tuple(_cpu(root, number, node_of.get(number, 0)) for number in sorted(numbers))
    inhabited = {cpu.node for cpu in cpus}
    nodes = {int(folder.name.removeprefix("node")) for folder in (root / NODES).glob("node[0-9]*")}
    return Topology(cpus, tuple(_gpus(root)), tuple(sorted(nodes - inhabited)))


def _nodes(root: Path) -> Iterator[tuple[int, int]]:
    """Yield each CPU with its NUMA node."""
    for folder in (root / NODES).glob("node[0-9]*"):
        for number in parse_list(_text(folder / "cpulist")):
            yield number, int(folder.name.removeprefix("node"))


def _cpu(root: Path, number: int, node: int) -> Cpu:
    folder = root / CPUS / f"cpu{number}" / "topology"
    siblings = parse_list(_text(folder / "thread_siblings_list")) or {number}
    # Some ARM and virtual machines write -1.
    socket = max(0, int(_text(folder / "physical_package_id") or 0))
    return Cpu(number, min(siblings), socket, node)


def _gpus(root: Path) -> Iterator[GpuOnBus]:
    for folder in sorted((root / PCI).glob("*")):
        if _text(folder / "class").startswith(DISPLAY) and _text(folder / "vendor") == NVIDIA:
            node = int(_text(folder / "numa_node") or -1)
            yield GpuOnBus(folder.name, node if node >= 0 else None)


def _text(path: Path) -> str:
    """Return the text of a file; none where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def parse_list(text: str) -> set[int]:
    """Return the numbers of a list as the kernel writes them: ``0-3,8``."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def write_list(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel writes them: ``0-3,8``."""
    ordered = sorted(set(numbers))
    runs = (list(run) for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]))
    ends = ((run[0][1], run[-1][1]) for run in runs)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ends)
