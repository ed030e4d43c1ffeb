"""Machines that are processes of one MPI job on this machine, with an agent for the first of them or without.

Each process runs this file, connects to the tests and waits for work; see ``suite.py``.
"""

import os
import secrets
import sys
import tempfile
import time
from contextlib import closing
from multiprocessing.connection import Client, Listener
from pathlib import Path

from synk.transport.commands.interfaces import Disconnected
from synk.transport.machines.agent import Agent
from synk.transport.machines.agent_listener import AgentListener, connect_to_rank_0
from synk.transport.machines.agent_reduce import AgentReduce
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.handshake import Listener as Port
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.mesh import link
from synk.transport.machines.mpi_job import MpiJob, end_own_job
from synk.transport.machines.mpi_library import find_mpirun, load_mpi
from synk.transport.machines.mpi_links import MpiLinks
from synk.transport.machines.proof import new_token

TESTS = Path(__file__).parents[2]
START_SECONDS = 60.0
HOST = "127.0.0.1"
AGENT = "agent"  # to the process that is no machine of its own


def missing():
    """Return the reason why there is no MPI here, or ""; MPI is not initialised."""
    try:
        import mpi4py  # noqa: F401

        find_mpirun()
    except ImportError as error:
        return str(error)
    return ""


def launch_here(n_processes, program, variables):
    """Return how so many processes are started on this machine: as if it were so many."""
    from synk.transport.machines.mpirun import launch

    one = launch(
        find_mpirun(),
        ["localhost"],
        program,
        environment=os.environ,
        variables={"PYTHONPATH": str(TESTS), **variables},
        folder=tempfile.gettempdir(),
        as_root=os.geteuid() == 0,
    )
    many = {"localhost:1": f"localhost:{n_processes}", "ppr:1:node": f"ppr:{n_processes}:node"}
    return one._replace(command=tuple(many.get(word, word) for word in one.command))


class MpiGroup:
    """Machines that are processes of an MPI job; with an agent, this process is the first machine."""

    def __init__(self, n_machines, with_agent=False):
        self.n_machines = n_machines
        self._command = 0
        for_agent, key, name = AgentListener(), secrets.token_hex(16), f"\0synk-tests-{secrets.token_hex(16)}"
        token = new_token()
        program = [sys.executable, __file__, name[1:], *([AGENT] if with_agent else [])]
        with Listener(name, "AF_UNIX", authkey=key.encode()) as listener:
            variables = {**for_agent.environment, "KEY": key}
            self.job = MpiJob(launch_here(n_machines, program, variables))
            self._deadline = time.monotonic() + START_SECONDS
            try:
                listener._listener._socket.settimeout(START_SECONDS)
                connections = [listener.accept() for _ in range(n_machines - with_agent)]
                called = {connection: connection.recv() for connection in connections}
                self.machines = dict(sorted((machine, one) for one, (machine, _) in called.items()))
                addresses = dict(called.values())
                with closing(Port(HOST)) as own:
                    if with_agent:
                        addresses[0] = own.address
                    for connection in connections:
                        connection.send(([addresses[n] for n in range(n_machines)], token))
                    self.leaders = self.reduction = None
                    if with_agent:
                        self.reduction = AgentReduce(for_agent.accept(self._watch))
                        links = link(0, [addresses[n] for n in range(n_machines)], own, token, self._deadline)
                        self.leaders = LinkedLeaders(links, self.reduction)
            except BaseException:
                print(self.job.log.tail(), file=sys.stderr)
                self.job.end()
                raise
            finally:
                for_agent.close()

    def _watch(self):
        assert self.job.exit_code() is None, self.job.log.tail()
        assert time.monotonic() < self._deadline, "processes of MPI do not start"

    def outcomes(self, work, *arguments):
        """Run one command; return what each machine returned or raised."""
        self._command += 1
        for connection in self.machines.values():
            connection.send((self._command, work, arguments))
        mine = [] if self.leaders is None else [outcome(self.leaders, self._command, work, arguments)]
        for machine, connection in self.machines.items():
            deadline = time.monotonic() + START_SECONDS
            while not connection.poll(0.01) and time.monotonic() < deadline:
                if self.leaders is not None:
                    self.leaders.push(0.01)
            assert connection.poll(), f"machine {machine} does not answer"
        return mine + [connection.recv() for connection in self.machines.values()]

    def close(self):
        if self.leaders is not None:
            self.leaders.close()
        self.job.end()
        for connection in self.machines.values():
            connection.close()


def outcome(leaders, command, work, arguments):
    """Return the result of ``work`` on one machine, or its exception."""
    leaders.begin(command)
    try:
        return work(leaders, lambda: None, *arguments)
    except Exception as error:
        return error


def serve(name, agent):
    """Do the work of one machine until the tests are gone."""
    world = load_mpi().COMM_WORLD
    reduction = MachineAllReduce(MpiLinks(world))
    try:
        if agent and world.rank == 0:
            Agent(reduction, connect_to_rank_0()).run()
        with Client(f"\0{name}", "AF_UNIX", authkey=os.environ["KEY"].encode()) as tests:
            with closing(Port(HOST)) as own:
                tests.send((world.rank, own.address))
                addresses, token = tests.recv()
                links = link(world.rank, addresses, own, token, time.monotonic() + START_SECONDS)
            leaders = LinkedLeaders(links, reduction)
            while True:
                while not tests.poll() and leaders.push(0.01):
                    pass
                tests.send(outcome(leaders, *tests.recv()))
    except (Disconnected, EOFError, OSError):
        end_own_job(tempfile.gettempdir())
        os._exit(0)  # no farewell to processes that may be gone


if __name__ == "__main__":
    serve(sys.argv[1], AGENT in sys.argv)
