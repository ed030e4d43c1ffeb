"""Read the list of machines of a run from any of the forms in which users give it.

Nothing is started, and only `check_known` looks names up.

hosts="h1,h2", a list, a hostfile, "auto" -> parse_hosts -> (Host, Host, ...), in the order given
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from synk.transport.machines.hostfile import Host, in_file, make_host, read_hostfile, some
from synk.transport.machines.schedulers import Read, granted
from synk.values.errors import SynkStateError

# Variables that launchers of MPI set in every process that they start. SLURM_NTASKS would not do: salloc sets
# it too.
UNDER_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


def parse_hosts(
    hosts: str | os.PathLike[str] | Sequence[str],
    n: int | None = None,
    environ: Mapping[str, str] = os.environ,
    read: Read = read_hostfile,
) -> tuple[Host, ...]:
    """Return the machines of a run, in the order given.

    Parameters
    ----------
    hosts : str, path or sequence of str
        ``"h1,h2"``, or ``"h1:2,h2:4"`` with slots; a list of such names; the path of a hostfile, which is
        known by a slash in it (``"./hosts"``); ``"auto"`` for the list of the batch system.
    n : int, optional
        Ranks on each machine, whatever a hostfile or a batch system says.
    environ : mapping, optional
        The environment, for ``"auto"``.
    read : callable, optional
        Returns the text of the file at a path, or raises OSError.

    Raises
    ------
    TypeError
        If ``hosts`` is none of these, or an element of the list is no string.
    ValueError
        If there is no host; if one is malformed, is twice in a list, or has another number of slots than
        ``n``; if a hostfile is no text file.
    OSError
        If the hostfile cannot be read.
    """
    if isinstance(hosts, bytes) or not isinstance(hosts, Sequence | os.PathLike):
        raise TypeError(f"hosts={hosts!r} is neither a string, a list of strings, nor a path")
    if isinstance(hosts, str) and hosts.strip() == "auto":
        found = granted(environ, read)
    elif isinstance(hosts, os.PathLike) or (isinstance(hosts, str) and "/" in hosts):
        path = os.fspath(hosts)
        found = in_file(read(path), path)
    else:
        found = _listed(hosts.split(",") if isinstance(hosts, str) else hosts, f"hosts={hosts!r}", n)
    return found if n is None else tuple(Host(host.name, n) for host in found)


def under_mpi(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the variable that shows that mpirun or srun started this process, ``PMI_SIZE=3``, or None."""
    return next((f"{name}={environ[name]}" for name in UNDER_MPI if name in environ), None)


def refuse_under_mpi(hosts: object, environ: Mapping[str, str] = os.environ) -> None:
    """Raise SynkStateError if mpirun or srun started this process: then the machines are chosen already."""
    sign = under_mpi(environ)
    if sign is not None:
        raise SynkStateError(
            f"fork: hosts={hosts!r}, but mpirun or srun has started this script ({sign}), and chosen its "
            "machines: leave hosts out, or start the script by python alone"
        )


def _listed(names: Iterable[str], where: str, n: int | None) -> tuple[Host, ...]:
    """Return the hosts of a list that a user wrote; raise ValueError if a host is in it twice."""
    found = []
    for text in names:
        if not isinstance(text, str):
            raise TypeError(f"{where}: {text!r} is no name of a host; write a string, as in ['h1', 'h2:4']")
        name, colon, slots = text.strip().partition(":")
        host = make_host(name, slots if colon else None, where)
        if n is not None and host.slots not in (None, n):
            raise ValueError(f"{where}: {text.strip()!r} contradicts n_parallel={n}; leave one of them out")
        found.append(host)
    counts = Counter(host.name.lower() for host in found)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"{where}: {twice[0]!r} is named twice; for several ranks write '{twice[0]}:2'")
    return some(found, where)


def check_known(hosts: Iterable[Host], find: Callable[[str], object] = socket.gethostbyname) -> None:
    """Raise ValueError if the system finds no address for some host, or the same for two."""
    unknown, names = [], dict[object, str]()
    for host in hosts:
        try:
            address = find(host.name)
        except OSError as error:
            unknown.append(f"{host.name!r} ({error.strerror or error})")
            continue
        if address in names:
            raise ValueError(f"hosts {names[address]!r} and {host.name!r} are one machine: {address}")
        names[address] = host.name
    if unknown:
        raise ValueError(
            f"no address is known for host {', '.join(unknown)}: check the spelling, DNS and /etc/hosts; "
            f"`getent hosts {unknown[0].split()[0]}` asks the same"
        )
