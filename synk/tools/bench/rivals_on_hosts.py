"""Start the rivals on several machines by mpirun; gloo's processes are started by it, too.

assemble_on_hosts -> a GroupCrew, whose rank 0 is connected -> answers of all ranks
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from synk.tools.bench.crew import CrewLost, GroupCrew, RivalProcesses, address
from synk.tools.bench.rivals import ENVIRONMENT, GLOO, MPI, SCRIPT, check, missing_gloo, missing_mpi
from synk.transport.machines.mpi_library import find_mpirun
from synk.transport.machines.mpirun import launch, more_ssh_options

# Where processes of hosts share cores, as in containers of one machine, MPI's waiting would stop the others.
YIELD = "OMPI_MCA_mpi_yield_when_idle"
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", YIELD)

MISSING = {MPI: missing_mpi, GLOO: lambda: missing_mpi() or missing_gloo()}


def assemble_on_hosts(
    hosts: Sequence[str], n_each: int, interface: str | None, stack: ExitStack
) -> tuple[dict[str, RivalProcesses], list[str]]:
    """Start Open MPI and gloo with ``n_each`` processes on each host; return as `rivals.assemble` does."""
    crews: dict[str, RivalProcesses] = {}
    left_out = []
    for name, missing in MISSING.items():
        if reason := missing():
            left_out.append(f"without {name}: {reason}")
            continue
        commands = partial(start, name, hosts, n_each, interface)
        environment = {name: ENVIRONMENT[name] for name in ENVIRONMENT if not name.startswith("GLOO")}
        environment |= dict.fromkeys(VARIABLES, "1")
        crew = stack.enter_context(GroupCrew(name, commands, 1, environment))
        try:
            crew.meet()
            check(crew, len(hosts) * n_each)
            crews[name] = crew
        except CrewLost as error:
            crew.close()
            left_out.append(f"without {name}: {error}")
    return crews, left_out


def start(
    name: str, hosts: Sequence[str], n_each: int, interface: str | None, folder: str
) -> list[Sequence[str]]:
    """Return the one command line that starts all ranks."""
    kind = ["group-mpi"] if name == MPI else ["group-gloo", f"{hosts[0]}:{free_port(hosts[0])}"]
    made = launch(
        find_mpirun(),
        hosts,
        [*SCRIPT, kind[0], address(folder), *kind[1:]],
        environment={},
        variables=dict.fromkeys(VARIABLES, "1"),
        folder=folder,
        as_root=os.geteuid() == 0,
        interface=interface,
        ssh_options=more_ssh_options(),
        n_each=n_each,
    )
    return [made.command]


def free_port(host: str) -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])
