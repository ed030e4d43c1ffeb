"""``python -m synk run``: run a script whose ``fork()`` uses the ranks and machines of this command line.

-np, -H -> environment_variables, which `synk.fork` reads -> the script, which replaces this process
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
    """Replace this process by the script that ``argv`` names."""
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
        os.environ.update(environment_variables(options.num_proc, hosts, options.interface))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, options.script, *options.arguments])


def environment_variables(n: int | None, hosts: str | None, interface: str | None) -> dict[str, str]:
    """Return the environment variables by which `synk.fork` learns of ranks, hosts and network.

    Raises ValueError if ``n`` is no number of ranks, or greater than the number of slots of the hosts.
    """
    if n is not None and n < 1:
        raise ValueError(f"-np {n} is no number of ranks")
    if hosts is None and interface:
        raise ValueError(f"--interface {interface} is the network between several machines: name them by -H")
    if hosts is None:
        return {} if n is None else {RANKS: str(n)}
    found = parse_hosts(hosts)
    divided = found if n is None else divide_ranks(n, found)
    names = ",".join(host.name if host.slots is None else f"{host.name}:{host.slots}" for host in divided)
    return {HOSTS: names, **({INTERFACE: interface} if interface else {})}


def divide_ranks(n: int, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts with ``n`` ranks divided among them; hosts without a rank are left out.

    Their slots are filled in the order of hosts; if no host names its slots, the ranks are divided evenly.
    """
    if all(host.slots is None for host in hosts):
        sizes = [stop - start for start, stop in split(n, len(hosts))]
    else:
        slots, sizes = [host.slots or 1 for host in hosts], list[int]()
        if n > sum(slots):
            raise ValueError(f"-np {n} is more than the {sum(slots)} slots of the hosts")
        for free in slots:
            sizes.append(min(free, n - sum(sizes)))
    return tuple(Host(host.name, size) for host, size in zip(hosts, sizes, strict=True) if size)
