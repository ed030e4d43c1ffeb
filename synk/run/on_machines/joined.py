"""A script that mpirun or srun has started on every machine: one run, in which leaders follow the first.

fork -> joined_world -> on the first machine: call -> Job; on the others: follow, until the script has ended
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from synk.run.device.cpu import count_cores
from synk.run.on_machines.job import CALL_SECONDS, Called, Job, hang_up
from synk.run.on_machines.leader import lead
from synk.run.on_machines.leader_calls import LeaderCall, link_called
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.handshake import Listener
from synk.transport.machines.hosts import under_mpi
from synk.transport.machines.linked_leaders import LinkedLeaders
from synk.transport.machines.mpi_library import load_mpi
from synk.transport.machines.mpi_links import MpiLinks
from synk.transport.machines.networks import own_address
from synk.transport.machines.proof import new_token
from synk.values.errors import SynkStateError, SynkWarning
from synk.values.script_frames import stacklevel

LAUNCHED = "mpirun or srun has started this script on its machines"
NEXT_RUN_SECONDS = 1e6  # for the script to fork again, or to end
AGAIN_SECONDS = 0.2  # before the next call
LAST_SECONDS = 5.0  # for leaders to have ended their workers when the script ends
NAME_BYTES = 64
TOLD_BYTES = 256  # that the first machine tells all others


class JoinedWorld:
    """The MPI job that has started this script on every machine, for all its runs, one after the other.

    On the first machine it listens until the script ends, so that leaders call again for the next run, or
    after a restart; on the others `follow` does not return.

    Attributes
    ----------
    is_first : bool
        Whether this is the first machine.
    n : int, optional
        Ranks of each machine in the next run; by default one for each core.
    interface : str, optional
        The network at which the first machine listens.
    """

    def __init__(self, world: Any, interface: str | None):
        self.is_first = world.rank == 0
        self._pid = os.getpid()
        self.n: int | None = None
        self._world, self._others = world, world.size - 1
        hosts, said = _names(world), b""
        try:
            if self.is_first:
                self._listener = Listener(_address(hosts, interface))
                said = json.dumps([*self._listener.address, new_token().hex()]).encode()
        finally:  # else the others wait for it
            told = _told(world, said)
        if not told:
            sys.exit(1)
        host, port, token = json.loads(told)
        self._address, self._token = (host, port), bytes.fromhex(token)
        if self.is_first:
            _warn_of_neighbours(hosts)

    def call(self) -> Job:
        """Return the leaders of the other machines, once all have called."""
        called = self._called(time.monotonic() + CALL_SECONDS, is_over=False)
        sized = [
            (end, {**hello, "ranks": hello["ranks"] or self.n or hello["cores"]}) for end, hello in called
        ]
        try:
            links = link_called(called, self._listener, self._token)
        except BaseException:
            hang_up(called)
            raise
        leaders = LinkedLeaders(links, MachineAllReduce(MpiLinks(self._world)))
        return Job(socket.gethostname(), self.n or count_cores(), sized, leaders, held=[self._listener])

    def _called(self, deadline: float, is_over: bool) -> list[Called]:
        """Return the connections to all others, who are told whether the script is over."""
        called: list[Called] = []
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
        """Call again; raise SynkStateError if a machine is lost, which ends the job."""
        if lost:
            raise SynkStateError(
                f"restart: {LAUNCHED}, and it ends with each of them ({', '.join(lost)} is lost): start it "
                "again from a checkpoint"
            )
        return self.call()

    def use(self, hosts: Any) -> None:
        raise SynkStateError(f"restart: {LAUNCHED}, which are chosen: leave hosts out")

    def follow(self) -> NoReturn:
        """Be the leader of this machine, in one run after the other, until the script has ended."""
        # What this machine was told counts for its first run: later ones are forked on the first machine.
        hello = {"cores": count_cores(), "ranks": self.n}
        while True:
            deadline = time.monotonic() + NEXT_RUN_SECONDS
            try:
                call = LeaderCall(self._world, self._address, self._token, hello, deadline)
            except ConnectionRefusedError:  # nobody listens any more
                sys.exit()
            except OSError as error:
                sys.exit(f"synk: {socket.gethostname()} does not reach the first machine of the run: {error}")
            if call.said.get("is_over"):
                sys.exit()
            if lead(call.end, call.leaders):
                hello["ranks"] = None
            else:  # the first machine may still be at the start that has failed here
                time.sleep(AGAIN_SECONDS)

    def end(self) -> None:
        """End the job when the script ends, its last run closed, on the machine that has one.

        It ends where a leader hangs, too: MPI would wait for it.
        """
        if not self.is_first or os.getpid() != self._pid:  # a child of the script's
            return
        try:
            for end, _ in self._called(time.monotonic() + LAST_SECONDS, is_over=True):
                end.close()
        except SynkStateError:
            self._world.Abort(1)
        finally:
            self._listener.close()


def joined_world(interface: str | None) -> JoinedWorld | None:
    """Return the MPI job that has started this script, if a launcher of MPI did so on several machines."""
    if under_mpi() in (None, "OMPI_COMM_WORLD_SIZE=1", "PMI_SIZE=1"):
        return None
    world = load_mpi().COMM_WORLD
    return JoinedWorld(world, interface) if world.size > 1 else None


# Nothing that comes over MPI, which proves nothing, is unpickled: it is bytes, of one length.


def _names(world: Any) -> list[str]:
    """Return the names of all machines."""
    names = bytearray(NAME_BYTES * world.size)
    world.Allgather(socket.gethostname().encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), names)
    starts = range(0, len(names), NAME_BYTES)
    return [names[start : start + NAME_BYTES].rstrip(b"\0").decode() for start in starts]


def _told(world: Any, said: bytes) -> bytes:
    """Return on every machine what the first says."""
    told = bytearray(said.ljust(TOLD_BYTES, b"\0"))
    world.Bcast(told)
    return bytes(told.rstrip(b"\0"))


def _address(hosts: Sequence[str], interface: str | None) -> str:
    """Return where the first machine listens for the others, all of which may be processes of one."""
    first, *others = hosts
    return own_address(first, [host for host in others if host != first], interface)


def _warn_of_neighbours(hosts: Sequence[str]) -> None:
    """Warn if processes of one machine are taken for several."""
    (host, count), *_ = Counter(hosts).most_common(1)
    if count > 1:
        warnings.warn(
            f"fork: the launcher has started {count} processes on {host}, each of which counts as a machine "
            "with ranks of its own; start one on each machine: --map-by ppr:1:node, --ntasks-per-node=1",
            SynkWarning,
            stacklevel=stacklevel(),
        )
