"""Ranks of several machines on threads of this process: a host communicator each, leaders between them."""

from itertools import chain

from support.communicators.suite import HostGroup
from support.machines.leaders import thread_leaders
from support.transport.parts import on_threads
from synk.transport.comm import LoneCommunicator, MachinesCommunicator
from synk.values.machine import machines


class MachinesGroup:
    """The ranks of machines that have ``sizes`` ranks."""

    def __init__(self, sizes):
        self.n_ranks = sum(sizes)
        self.leaders = thread_leaders(len(sizes))
        self.machines = machines([f"h{number}" for number in range(len(sizes))], sizes)
        self._locals = [HostGroup(size) for size in sizes]
        self._seats = list(chain.from_iterable(map(self._seats_of, self.machines)))
        self._command = 0

    def _seats_of(self, machine):
        """Yield each rank's communicator, its barrier, and the leaders if it is one."""
        group = self._locals[machine.number]
        for place, barrier in enumerate(group.barriers):
            leaders = None if place else self.leaders[machine.number]
            local = group.communicators[place] if machine.n_places > 1 else LoneCommunicator()
            yield MachinesCommunicator(local, machine, leaders, barrier.look), barrier, leaders

    def outcomes(self, work):
        """Run one command; return what each rank returned or raised, in rank order."""
        self._command += 1

        def run(rank):
            communicator, barrier, leaders = self._seats[rank]
            peers = [one for one in (barrier, leaders) if one is not None]
            for one in peers:
                one.begin(self._command)
            try:
                return work(communicator)
            except BaseException:
                for one in peers:
                    one.fail()
                raise

        return on_threads(self.n_ranks, run)

    run = HostGroup.run

    def close(self):
        for group in self._locals:
            group.close()
