"""Build the commands that start processes on other machines; nothing is run here.

hosts, program -> launch -> MpirunCommand -> MpiJob
host, command -> on -> command of ssh or srun
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

# TCP keepalives of the daemons (seconds, seconds, times): by default they outlive a cut link for minutes.
KEEPALIVE = (("time", "1"), ("intvl", "1"), ("probes", "3"))
# In a Slurm job, mpirun reaches other machines by srun. A job step that has lost a machine occupies the other
# ones until Slurm gives the lost one up, so the step of a restart must overlap with it.
IN_SLURM, SHARE = "SLURM_JOBID", {"SLURM_OVERLAP": "1"}
GUARDED = sys.executable, "-I", "-S", sessions.__file__, sessions.DAEMON


class MpirunCommand(NamedTuple):
    """A command of ``mpirun``, its environment, and the folder in which it makes its temporary folder."""

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
    """Return the command by which Open MPI's ``mpirun`` starts ``n_each`` processes on each host.

    Parameters
    ----------
    mpirun : str
        Path of the program.
    hosts : sequence of str
        Names that `parse_hosts` has checked, in the order of machines; the first is this one.
    program : sequence of str
        What every machine runs: an absolute path, and arguments.
    environment : mapping
        Of this process, for ``mpirun`` and the first machine.
    variables : mapping
        Environment variables for the processes on all machines. The command, which every user of a machine
        can see, shows their names only.
    folder : str
        The folder in which Open MPI makes its temporary folder on this machine.
    as_root : bool
        Whether to let Open MPI run as root, which it otherwise refuses.
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
    """Return the user's options of ssh, split into words; raise ValueError if they contain quotes."""
    text = environment.get(MORE_SSH_OPTIONS, "")
    if set(text) & set("'\"\\"):
        raise ValueError(
            f"{MORE_SSH_OPTIONS}={text!r} has quotes, which mpirun does not know: write such options into a "
            "file like ~/.ssh/config, and name that, as '-F my_config' does"
        )
    return text.split()


def _guarded(agent: Sequence[str]) -> list[str]:
    """Return the options that start daemons through the command ``agent``; none if it needs quoting."""
    words = " ".join(agent)
    return ["--prtemca", "prte_launch_agent", words] if words == shlex.join(agent) else []


def on(
    host: str, command: Sequence[str], environment: Mapping[str, str], ssh_options: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs ``command`` on a host as ``mpirun`` would reach it: by srun or by ssh."""
    if IN_SLURM in environment:
        step = "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", f"--nodelist={host}"
        return ["srun", *step, *command]
    return ["ssh", *shlex.split(" ".join([*ssh_options, *SSH_OPTIONS])), host, shlex.join(command)]


def _only(interface: str) -> list[str]:
    """Return the options by which Open MPI uses one network interface only."""
    return ["--prtemca", "prte_if_include", interface, "--mca", "btl_tcp_if_include", interface]
