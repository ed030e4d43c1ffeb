"""The program that mpirun starts on every machine: on the first, the agent of rank 0, on the others a leader.

mpirun: python follower.py -> follow -> be_the_agent -> Agent.run
                                     -> be_a_leader -> lead

mpirun runs this file by its path, so that each process imports only what it needs. The agent computes
nothing: without PyTensor it starts in half the time, and leaves the cores to the imports of leaders, if these
share its machine.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

SYNK = Path(__file__).parents[2]
RANK = "OMPI_COMM_WORLD_RANK"  # the environment variable with the number of this process in the MPI job


def follow() -> None:
    """Be the agent on the first machine, and a leader on every other one, until the run has ended."""
    sys.path[0] = str(SYNK.parent)  # instead of this folder
    if os.environ[RANK] == "0":
        be_the_agent()
    else:
        be_a_leader()


def be_the_agent() -> None:
    """Be the agent, which exchanges arrays with other machines by MPI for rank 0, until rank 0 is gone."""
    # An empty package in the place of synk: its modules can be imported without running its ``__init__``.
    synk = sys.modules["synk"] = ModuleType("synk")
    synk.__path__ = [str(SYNK)]
    from synk.run.on_machines.started_jobs import FOLDER
    from synk.transport.commands.interfaces import Disconnected
    from synk.transport.machines.agent import Agent
    from synk.transport.machines.agent_listener import connect_to_rank_0
    from synk.transport.machines.all_reduce import MachineAllReduce
    from synk.transport.machines.mpi_job import end_own_job, join_own_job
    from synk.transport.machines.mpi_links import MpiLinks

    folder = os.environ.pop(FOLDER)
    with suppress(Disconnected):
        end = connect_to_rank_0()
        Agent(MachineAllReduce(MpiLinks(join_own_job(folder))), end).run()
    end_own_job(folder)


def be_a_leader() -> None:
    """Call the master, and lead the ranks of this machine."""
    from synk.run.device.cpu import count_cores
    from synk.run.on_machines.job import CALL_SECONDS
    from synk.run.on_machines.leader import lead
    from synk.run.on_machines.leader_calls import LeaderCall
    from synk.run.on_machines.started_jobs import ADDRESS, FOLDER, TOKEN
    from synk.transport.commands.interfaces import Leaders
    from synk.transport.machines.agent_listener import pop_address_and_token
    from synk.transport.machines.mpi_job import end_own_job, join_own_job, limited_start
    from synk.transport.machines.sessions import temporary_folder

    folder = temporary_folder()
    with ExitStack() as start:
        start.enter_context(limited_start(folder))
        world = join_own_job(folder)
        host, port = os.environ.pop(ADDRESS).rsplit(":", 1)
        token = bytes.fromhex(os.environ.pop(TOKEN))
        del os.environ[FOLDER]
        pop_address_and_token()  # programs that a rank starts must not inherit them
        deadline = time.monotonic() + CALL_SECONDS
        call = LeaderCall(world, (host, int(port)), token, {"ranks": count_cores()}, deadline)

        def link() -> Leaders:
            leaders = call.leaders()
            start.close()
            return leaders

        if not lead(call.end, link):
            end_own_job(folder)


def main() -> NoReturn:
    """Run `follow`, then end this process, even after an error, without MPI waiting for others."""
    code = 1
    try:
        follow()
        code = 0
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
