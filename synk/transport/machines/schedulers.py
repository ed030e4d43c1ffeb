"""Read the machines that a batch system has granted: Slurm, Kubernetes (an MPIJob), LSF or PBS.

environment, files -> granted -> (Host, Host, ...), in the order of the batch system
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from synk.transport.machines.hostfile import Host, in_file, make_host, merged, some

# The hostfile that the operator of a Kubernetes MPIJob writes in the pod of the launcher.
MPIJOB_HOSTFILE = "/etc/mpi/hostfile"

Read = Callable[[str], str]  # returns the text of the file at a path


def granted(environ: Mapping[str, str], read: Read) -> tuple[Host, ...]:
    """Return the hosts that a batch system has granted; if there are several lists, the first one found."""
    if "SLURM_JOB_NODELIST" in environ:
        return _slurm(environ)
    try:
        return in_file(read(MPIJOB_HOSTFILE), MPIJOB_HOSTFILE)
    except OSError:  # not in Kubernetes
        pass
    if "LSB_MCPU_HOSTS" in environ:
        return _lsf_pairs(environ["LSB_MCPU_HOSTS"].split())
    if "LSB_HOSTS" in environ:
        return _repeated(environ["LSB_HOSTS"].split(), "LSB_HOSTS")
    if "PBS_NODEFILE" in environ:
        return _repeated(read(environ["PBS_NODEFILE"]).split(), environ["PBS_NODEFILE"])
    raise ValueError(
        "hosts='auto' finds no list: neither SLURM_JOB_NODELIST, LSB_MCPU_HOSTS, LSB_HOSTS nor PBS_NODEFILE "
        f"is set, and there is no {MPIJOB_HOSTFILE}; start the script in an allocation, or name the hosts: "
        "hosts='h1,h2'"
    )


def _slurm(environ: Mapping[str, str]) -> tuple[Host, ...]:
    nodes = environ["SLURM_JOB_NODELIST"]
    names = list(slurm_names(nodes))
    tasks = environ.get("SLURM_TASKS_PER_NODE")
    slots: list[str] | list[None] = [None] * len(names) if tasks is None else list(slurm_tasks(tasks))
    if len(slots) != len(names):
        raise ValueError(
            f"SLURM_TASKS_PER_NODE={tasks!r} is for {len(slots)} nodes, and SLURM_JOB_NODELIST={nodes!r} "
            f"names {len(names)}; name the hosts: hosts='h1,h2'"
        )
    found = [make_host(name, n, "SLURM_JOB_NODELIST") for name, n in zip(names, slots, strict=True)]
    return some(found, f"SLURM_JOB_NODELIST={nodes!r}")


def slurm_names(nodes: str) -> Iterator[str]:
    """Yield the names in a node list in Slurm's notation, such as ``node[01-03,7]-ib,login``."""
    terms = re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", nodes)
    if ",".join(terms) != nodes:
        raise ValueError(f"SLURM_JOB_NODELIST={nodes!r} is no list of nodes such as 'node[01-03,7],login'")
    for term in terms:
        parts = re.split(r"\[(.*?)\]", term)  # plain text at even places, the content of brackets at odd ones
        choices = [list(_numbers(part, nodes)) if i % 2 else [part] for i, part in enumerate(parts)]
        yield from map("".join, product(*choices))


def _numbers(ranges: str, nodes: str) -> Iterator[str]:
    """Yield the numbers of a list such as ``01-03,7`` as text, with leading zeros."""
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        first, last = match.groups() if match else ("1", "0")
        if int(last or first) < int(first):
            raise ValueError(f"SLURM_JOB_NODELIST={nodes!r}: {part!r} is no number, and no range of numbers")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def slurm_tasks(text: str) -> Iterator[str]:
    """Yield the number of tasks of each node: 2, 2, 2 and 1 for the text ``2(x3),1``."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part, re.ASCII)
        if not match:
            raise ValueError(f"SLURM_TASKS_PER_NODE={text!r}: {part!r} is not understood, as '2(x3),1' would")
        for _ in range(int(match[2] or 1)):
            yield match[1]


def _lsf_pairs(words: list[str]) -> tuple[Host, ...]:
    """Return the hosts of LSF's list of pairs: a name, then its number of slots."""
    where = "LSB_MCPU_HOSTS"
    if len(words) % 2:
        raise ValueError(f"{where}={' '.join(words)!r} is no list of pairs such as 'h1 2 h2 4'")
    return merged([make_host(*pair, where) for pair in zip(words[::2], words[1::2], strict=True)], where)


def _repeated(names: list[str], where: str) -> tuple[Host, ...]:
    """Return the hosts of a list that repeats a name once for each process on that host."""
    return merged([make_host(name, "1", where) for name in names], where)
