"""``python -m synk run``: run a script whose ``fork()`` means the ranks and machines that are named here.

-np, -H -> told -> variables of the environment, which `synk.fork` reads -> the script, as this process
"""

from __future__ import annotations

import argparse
import os
import sys

from synk.run.launch.fork_arguments import HOSTS, INTERFACE, RANKS
from synk.transport.machines.hostfile import Host
from synk.transport.machines.hosts import parse_hosts
from synk.values.rows import split

DESCRIPTION = "Run a script whose synk.fork() has so many ranks, on these machines; the first is this one."


def main(argv: list[str]) -> int:
    """Become the script that ``argv`` names."""
    parser = argparse.ArgumentParser(prog="python -m synk run", description=DESCRIPTION)
    parser.add_argument("-np", "--num-proc", type=int, metavar="N", help="ranks on all machines together")
    parser.add_argument("-H", "--hosts", metavar="HOST:RANKS,...", help="machines, this one first")
    parser.add_argument("--hostfile", metavar="PATH", help="a file that lists them")
    parser.add_argument("--interface", help="the network between them: eth0, say, or 10.0.0.0/24")
    parser.add_argument("script", help="what follows it are its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    hosts = options.hosts if options.hostfile is None else os.path.abspath(options.hostfile)
    try:
        os.environ.update(told(options.num_proc, hosts, options.interface))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, options.script, *options.arguments])


def told(n: int | None, hosts: str | None, interface: str | None) -> dict[str, str]:
    """Return the variables that tell `synk.fork` of ranks and hosts.

    Raises ValueError if ``n`` is no number of ranks, or more than the hosts have slots.
    """
    if n is not None and n < 1:
        raise ValueError(f"-np {n} is no number of ranks")
    if hosts is None and interface:
        raise ValueError(f"--interface {interface} is the network between several machines: name them by -H")
    if hosts is None:
        return {} if n is None else {RANKS: str(n)}
    found = parse_hosts(hosts)
    dealt = found if n is None else deal(n, found)
    names = ",".join(host.name if host.slots is None else f"{host.name}:{host.slots}" for host in dealt)
    return {HOSTS: names, **({INTERFACE: interface} if interface else {})}


def deal(n: int, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Deal out so many ranks: over the slots, in the order of hosts, or evenly where no host has slots."""
    if all(host.slots is None for host in hosts):
        sizes = [stop - start for start, stop in split(n, len(hosts))]
    else:
        slots, sizes = [host.slots or 1 for host in hosts], list[int]()
        if n > sum(slots):
            raise ValueError(f"-np {n} is more than the {sum(slots)} slots of the hosts")
        for free in slots:
            sizes.append(min(free, n - sum(sizes)))
    return tuple(Host(host.name, size) for host, size in zip(hosts, sizes, strict=True) if size)
