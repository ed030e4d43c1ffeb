"""Runs of a script that mpirun or srun has started on every machine.

The process on the first machine is the master and runs the script; the others become leaders at
``synk.fork``.

fork -> joined_world -> on the first machine: call -> Job
                     -> on the others: follow, until the script has ended
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from synk.run.device.cpu import count_cores
from synk.run.on_machines.job import CALL_SECONDS, Job, LeaderConnection, hang_up
from synk.run.on_machines.leader import lead
from synk.run.on_machines.leader_calls import LeaderCall, link_leaders
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.handshake import Listener
from synk.transport.machines.hosts import under_mpi
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.mpi_library import load_mpi
from synk.transport.machines.mpi_links import MpiLinks
from synk.transport.machines.networks import own_address
from synk.transport.machines.proof import new_token
from synk.values.errors import SynkStateError
from synk.values.script_frames import warn_the_script

LAUNCHED = "mpirun or srun has started this script on its machines"
NEXT_RUN_SECONDS = 1e6  # how long a leader waits for the script to fork again, or to end
AGAIN_SECONDS = 0.2  # how long a leader waits before it calls again after a failed start
LAST_SECONDS = 5.0  # how long leaders have to end their workers when the script ends
NAME_BYTES = 64  # length of a host's name in `_names`
BROADCAST_BYTES = 256  # length of the message in `_broadcast_from_first`


class JoinedWorld:
    """The MPI job that has started this script on every machine: the source of leaders for all its runs.

    On the first machine it listens for calls of leaders until the script ends: they call for each run, and
    again after a restart. On the others `follow` makes the process a leader, and does not return.

    Attributes
    ----------
    is_first : bool
        Whether this is the first machine.
    n : int, optional
        The number of ranks on each machine in the next run; by default one for each core.
    interface : str, optional
        The network on which the first machine listens.
    """

    def __init__(self, world: Any, interface: str | None):
        self.is_first = world.rank == 0
        self._pid = os.getpid()
        self.n: int | None = None
        self._world, self._others = world, world.size - 1
        hosts, message = _names(world), b""
        try:
            if self.is_first:
                self._listener = Listener(_address(hosts, interface))
                message = json.dumps([*self._listener.address, new_token().hex()]).encode()
        finally:  # after an error, too: the others wait for a message, and an empty one ends them
            received = _broadcast_from_first(world, message)
        if not received:
            sys.exit(1)
        host, port, token = json.loads(received)
        self._address, self._token = (host, port), bytes.fromhex(token)
        if self.is_first:
            _warn_of_neighbours(hosts)

    def call(self) -> Job:
        """Wait until the leaders of all other machines have called, and return them as a job."""
        called = self._called(time.monotonic() + CALL_SECONDS, is_over=False)
        sized = [
            (end, {**hello, "ranks": hello["ranks"] or self.n or hello["cores"]}) for end, hello in called
        ]
        try:
            links = link_leaders(called, self._listener, self._token)
        except BaseException:
            hang_up(called)
            raise
        leaders = LinkedLeaders(links, MachineAllReduce(MpiLinks(self._world)))
        return Job(socket.gethostname(), self.n or count_cores(), sized, leaders, held=[self._listener])

    def _called(self, deadline: float, is_over: bool) -> list[LeaderConnection]:
        """Wait until all leaders have called, and return them; tell each whether the script is over."""
        called: list[LeaderConnection] = []
        try:
            while len(called) < self._others:
                called.append(self._listener.accept(self._token, {"is_over": is_over}, deadline))
        except TimeoutError as error:
            hang_up(called)
            there = ", ".join(hello["host"] for _, hello in called) or "none"
            raise SynkStateError(
                f"only {len(called)} of {self._others} other machines have called ({there}): on one a rank "
                f"may hang, or the script does not come to synk.fork(); or a firewall is between ({error})"
            ) from None
        return called

    def call_left(self, lost: Sequence[str]) -> Job:
        """Wait for the leaders to call again; raise SynkStateError if one is lost, which ends the MPI job."""
        if lost:
            raise SynkStateError(
                f"restart: {LAUNCHED}, and it ends with each of them ({', '.join(lost)} is lost): start it "
                "again from a checkpoint"
            )
        return self.call()

    def use(self, hosts: Any) -> None:
        raise SynkStateError(f"restart: {LAUNCHED}, which are chosen: leave hosts out")

    def follow(self) -> NoReturn:
        """Be the leader of this machine in all runs of the script, then exit."""
        # This machine's own number of ranks counts for the first run only: `fork` is called here just once.
        hello = {"cores": count_cores(), "ranks": self.n}
        while True:
            deadline = time.monotonic() + NEXT_RUN_SECONDS
            try:
                call = LeaderCall(self._world, self._address, self._token, hello, deadline)
            except ConnectionRefusedError:  # nobody listens any more
                sys.exit()
            except OSError as error:
                sys.exit(f"synk: {socket.gethostname()} does not reach the first machine of the run: {error}")
            if call.answer.get("is_over"):
                sys.exit()
            if lead(call.end, call.leaders):
                hello["ranks"] = None
            else:  # the start has failed here, and the first machine may not have noticed yet
                time.sleep(AGAIN_SECONDS)

    def end(self) -> None:
        """Tell the leaders that the script has ended, after its last run; only the first machine does so.

        If a leader does not call within `LAST_SECONDS`, the MPI job is aborted, since MPI would wait for it.
        """
        if not self.is_first or os.getpid() != self._pid:  # on another machine, or in a child process
            return
        try:
            for end, _ in self._called(time.monotonic() + LAST_SECONDS, is_over=True):
                end.close()
        except SynkStateError:
            self._world.Abort(1)
        finally:
            self._listener.close()


def joined_world(interface: str | None) -> JoinedWorld | None:
    """Return the MPI job that has started this script; None if no launcher did so, or on one machine only."""
    if under_mpi() in (None, "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1"):
        return None
    world = load_mpi().COMM_WORLD
    return JoinedWorld(world, interface) if world.size > 1 else None


# MPI does not prove who has sent a message, so nothing that comes by it is unpickled: messages are bytes of a
# fixed length.


def _names(world: Any) -> list[str]:
    """Return the host names of all machines, in the order of the MPI job."""
    names = bytearray(NAME_BYTES * world.size)
    world.Allgather(socket.gethostname().encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), names)
    starts = range(0, len(names), NAME_BYTES)
    return [names[start : start + NAME_BYTES].rstrip(b"\0").decode() for start in starts]


def _broadcast_from_first(world: Any, message: bytes) -> bytes:
    """Return on every machine the ``message`` of the first; other machines' messages are ignored."""
    buffer = bytearray(message.ljust(BROADCAST_BYTES, b"\0"))
    world.Bcast(buffer)
    return bytes(buffer.rstrip(b"\0"))


def _address(hosts: Sequence[str], interface: str | None) -> str:
    """Return the address at which the first machine listens; the others may be processes of the same host."""
    first, *others = hosts
    return own_address(first, [host for host in others if host != first], interface)


def _warn_of_neighbours(hosts: Sequence[str]) -> None:
    """Warn if several processes run on one host, since each is taken for a machine."""
    (host, count), *_ = Counter(hosts).most_common(1)
    if count > 1:
        warn_the_script(
            f"fork: the launcher has started {count} processes on {host}, each of which counts as a machine "
            "with ranks of its own; start one on each machine: --map-by ppr:1:node, --ntasks-per-node=1"
        )
