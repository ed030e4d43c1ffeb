"""Decide by which command one process a machine is started: nothing is run.

hosts, program -> launch -> MpirunCommand -> MpiJob
host -> reach -> command
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synk.transport.machines import sessions

CONNECT_SECONDS = 5
MORE_SSH_OPTIONS = "SYNK_SSH_OPTIONS"  # of the environment: the user's options

# Nobody is there to type a password. Keepalives end a connection to a machine that is gone. The user's
# options stand before these: ssh takes the first that it is given.
SSH_OPTIONS = (
    "-o BatchMode=yes",
    f"-o ConnectTimeout={CONNECT_SECONDS}",
    "-o ServerAliveInterval=5",
    "-o ServerAliveCountMax=2",
)

# By default the daemons of a job outlive a link that is cut for minutes: seconds, seconds, times.
KEEPALIVE = (("time", "1"), ("intvl", "1"), ("probes", "3"))
# In a job of Slurm mpirun reaches the other machines by srun. A step that has lost a machine holds the others
# until Slurm gives that one up; the step of a restart shares them with it.
IN_SLURM, SHARE = "SLURM_JOBID", {"SLURM_OVERLAP": "1"}
GUARDED = sys.executable, "-I", "-S", sessions.__file__, sessions.DAEMON


class MpirunCommand(NamedTuple):
    """A command with its environment, and the folder in which it has one of its own while it runs."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str


def launch(
    mpirun: str,
    hosts: Sequence[str],
    program: Sequence[str],
    *,
    environment: Mapping[str, str],
    variables: Mapping[str, str],
    folder: str,
    as_root: bool,
    interface: str | None = None,
    ssh_options: Sequence[str] = (),
    n_each: int = 1,
) -> MpirunCommand:
    """Return how Open MPI's ``mpirun`` starts ``n_each`` processes on each host.

    Parameters
    ----------
    mpirun : str
        Its path.
    hosts : sequence of str
        As `parse_hosts` lets them pass, in the order of machines; the first is this one.
    program : sequence of str
        What every machine runs: an absolute path, and arguments.
    environment : mapping
        Of this process, for ``mpirun`` and the first machine.
    variables : mapping
        Set on all machines. Values are not shown in the command, which every user of a machine can see.
    folder : str
        Where Open MPI makes a folder of its own on this machine.
    as_root : bool
        Whether this process may be one of root's, which Open MPI refuses unless told.
    interface : str, optional
        Of the network that Open MPI uses: ``"eth0"`` or ``"10.0.0.0/24"``.
    ssh_options : sequence of str
        ``"-F path"``, say.
    n_each : int
        Processes on each host.
    """
    command = [
        mpirun,
        *(["--allow-run-as-root"] if as_root else []),
        *("--host", ",".join(f"{host}:{n_each}" for host in hosts)),
        *("--map-by", f"ppr:{n_each}:node", "--bind-to", "none"),
        *("--prtemca", "plm_ssh_args", " ".join([*ssh_options, *SSH_OPTIONS])),
        # All machines are reached from the first: they need no keys for each other.
        *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        # Logins last as long as their daemons, and without this no more begin than 128.
        *("--prtemca", "plm_ssh_num_concurrent", str(len(hosts))),
        # Slurm ends the processes of a step itself, and knows them by what it has started.
        *([] if IN_SLURM in environment else _guarded(GUARDED)),
        *("--prtemca", "prte_local_tmpdir_base", folder),
        *(word for name, value in KEEPALIVE for word in ("--prtemca", f"oob_tcp_keepalive_{name}", value)),
        # Open MPI's other ways have hung, and leave files in /dev/shm when they are killed.
        *("--mca", "pml", "ob1", "--mca", "btl", "self,tcp"),
        *(_only(interface) if interface else []),
        *(word for name in variables for word in ("-x", name)),
        *program,
    ]
    return MpirunCommand(tuple(command), {**environment, **SHARE, **variables}, folder)


def more_ssh_options(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words of the user's options of ssh; raise ValueError where ``mpirun`` would see others."""
    text = environment.get(MORE_SSH_OPTIONS, "")
    if set(text) & set("'\"\\"):
        raise ValueError(
            f"{MORE_SSH_OPTIONS}={text!r} has quotes, which mpirun does not know: write such options into a "
            "file like ~/.ssh/config, and name that, as '-F my_config' does"
        )
    return text.split()


def _guarded(agent: Sequence[str]) -> list[str]:
    """Return how daemons are started by an agent; by themselves where a shell would take its words apart."""
    words = " ".join(agent)
    return ["--prtemca", "prte_launch_agent", words] if words == shlex.join(agent) else []


def on(
    host: str, command: Sequence[str], environment: Mapping[str, str], ssh_options: Sequence[str] = ()
) -> list[str]:
    """Return how a command runs on a host by the way that ``mpirun`` takes there: srun, or ssh."""
    if IN_SLURM in environment:
        step = "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", f"--nodelist={host}"
        return ["srun", *step, *command]
    return ["ssh", *shlex.split(" ".join([*ssh_options, *SSH_OPTIONS])), host, shlex.join(command)]


def _only(interface: str) -> list[str]:
    return ["--prtemca", "prte_if_include", interface, "--mca", "btl_tcp_if_include", interface]
