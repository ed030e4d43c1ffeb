"""A process of an MPI job that a script has started: the agent on its machine, a leader on any other.

python -m synk.run.follower, by mpirun -> Agent.run, or lead
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from typing import NoReturn

from synk.device.cpu import count_cores
from synk.machines.agent import Agent
from synk.machines.agent_door import forget_the_way, knock
from synk.machines.all_reduce import AllReduce
from synk.machines.mpi_job import end_own_job
from synk.machines.mpi_library import load_mpi
from synk.machines.mpi_links import MpiLinks
from synk.run.calling import Call
from synk.run.hosts import ADDRESS, FOLDER, TOKEN
from synk.run.job import CALL_SECONDS
from synk.run.leader import lead
from synk.transport.base import Disconnected


def follow() -> None:
    """Be what this machine's process is, until the script has ended."""
    world = load_mpi().COMM_WORLD
    host, port = os.environ.pop(ADDRESS).rsplit(":", 1)
    token, folder = bytes.fromhex(os.environ.pop(TOKEN)), os.environ.pop(FOLDER)
    if world.rank == 0:
        with contextlib.suppress(Disconnected):
            Agent(AllReduce(MpiLinks(world)), knock()).run()
        end_own_job(folder)
        return
    forget_the_way()  # programs that a rank starts need not know it
    deadline = time.monotonic() + CALL_SECONDS
    call = Call(world, (host, int(port)), token, {"ranks": count_cores()}, deadline)
    if not lead(call.end, call.leaders):
        end_own_job(tempfile.gettempdir())


def main() -> NoReturn:
    """Follow, then end this process, after an error too; the end of MPI would wait for the others."""
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
