"""Leaders of up to 64 machines that are threads of one process: the real ones, on `Links` of another kind.

Messages and bytes that each machine sends are counted. As with MPI, large messages and arrays stay with the
sender until the receiver takes them.
"""

import threading
import time
from collections import defaultdict, deque

import numpy as np

from support.transport.parts import nothing, on_threads
from synk.transport.machines.all_reduce import MachineAllReduce
from synk.transport.machines.linked_leaders import LinkedLeaders

DEADLINE = 20.0  # seconds, after which machines that wait for each other would wait forever
EAGER_BYTES = 1 << 16  # smaller messages leave at once


def thread_leaders(n_machines):
    """Return the leaders of so many machines, in the order of machines."""
    network = Network(n_machines)
    return [ThreadLeaders(ThreadLinks(machine, n_machines, network)) for machine in range(n_machines)]


class ThreadGroup:
    """Machines that are threads."""

    def __init__(self, n_machines):
        self.n_machines = n_machines
        self.leaders = thread_leaders(n_machines)
        self._command = 0

    def outcomes(self, work, *arguments):
        """Run one command; return what each machine returned or raised."""
        self._command += 1

        def run(machine):
            self.leaders[machine].begin(self._command)
            return work(self.leaders[machine], nothing, *arguments)

        return on_threads(self.n_machines, run)


class ThreadLeaders(LinkedLeaders):
    """The leaders of all machines, as one of them sees them: `Leaders`.

    Attributes
    ----------
    links : ThreadLinks
    """

    def __init__(self, links):
        super().__init__(links, MachineAllReduce(links))
        self.links = links

    @property
    def messages(self):
        """The number of messages and arrays that this machine has sent."""
        return self.links.messages

    @property
    def nbytes(self):
        """The bytes that this machine has sent, heads included."""
        return self.links.nbytes


class Network:
    """The ways between all machines."""

    def __init__(self, n_machines):
        self.changed = [threading.Condition() for _ in range(n_machines)]  # by machine: something came for it
        self.messages = [deque() for _ in range(n_machines)]  # by receiver: sender, message
        self.arrays = threading.Lock()
        self.cut = set()  # pairs of machines that do not reach each other
        self.sent, self.wanted = defaultdict(deque), defaultdict(deque)  # by (sender, receiver, tag)

    def tell(self, machine):
        with self.changed[machine]:
            self.changed[machine].notify_all()


class Transfer:
    """An array on its way."""

    def __init__(self, array):
        self.array, self.done = array, False


class ThreadLinks:
    """The ways from one machine to all others, of messages and of arrays: `Links`, `ArrayLinks`."""

    n_tags = 32768  # the fewest that MPI has

    def __init__(self, machine, n_machines, network):
        self.machine, self.n_machines = machine, n_machines
        self.messages = self.nbytes = 0
        self._network = network
        self._large = []  # messages that may not have left
        self._lively = time.monotonic()

    def cut_off(self, one, other):
        """Let nothing pass between two machines any more."""
        self._network.cut.add(frozenset((one, other)))

    def send(self, machine, message):
        self._note(len(message))
        if {self.machine, machine} in self._network.cut:
            return
        if len(message) > EAGER_BYTES:
            self._large.append((machine, message))
        self._network.messages[machine].append((self.machine, message))
        self._network.tell(machine)

    def unsent(self):
        waiting = self._network.messages
        self._large = [
            (machine, message)
            for machine, message in self._large
            if any(message is one for _, one in list(waiting[machine]))
        ]
        return bool(self._large)

    def push(self, seconds):
        return False

    def receive(self, take):
        mine = self._network.messages[self.machine]
        while mine:
            self._lively = time.monotonic()
            sender, message = mine.popleft()
            if len(message) > EAGER_BYTES:
                self._network.tell(sender)
            take(sender, memoryview(message))

    def start_send(self, array, machine, tag):
        self._note(array.nbytes)
        return self._meet(array, (self.machine, machine, tag), self._network.sent, self._network.wanted)

    def start_receive(self, array, machine, tag):
        return self._meet(array, (machine, self.machine, tag), self._network.wanted, self._network.sent)

    def _meet(self, array, way, own, others):
        """Let a transfer wait for the other machine's, or end both."""
        assert 0 <= way[2] < self.n_tags
        transfer = Transfer(array)
        if {*way[:2]} in self._network.cut:
            return transfer
        with self._network.arrays:
            if not others[way]:
                own[way].append(transfer)
                return transfer
            other = others[way].popleft()
            one, another = (transfer, other) if own is self._network.sent else (other, transfer)
            assert one.array.size == another.array.size, "a machine sends another length than is waited for"
            np.copyto(another.array, one.array, casting="no")
            transfer.done = other.done = True
        for machine in way[:2]:
            self._network.tell(machine)
        return transfer

    def done(self, transfers):
        return all(transfer.done for transfer in transfers)

    def give_up(self, transfers):
        pass

    def clear(self, tag):
        with self._network.arrays:
            for (_, receiver, sent), waiting in self._network.sent.items():
                if (receiver, sent) == (self.machine, tag):
                    waiting.clear()

    def rest(self, seconds):
        self.nap(seconds)
        return bool(self._network.messages[self.machine])

    def nap(self, seconds):
        assert time.monotonic() - self._lively < DEADLINE, f"machine {self.machine} waits forever"
        changed = self._network.changed[self.machine]
        with changed:
            if not self._network.messages[self.machine]:
                changed.wait(max(seconds, 1e-3))

    def cut(self):
        return [str(other) for other in range(self.n_machines) if {self.machine, other} in self._network.cut]

    def close(self):
        pass

    def _note(self, nbytes):
        self.messages += 1
        self.nbytes += nbytes
        self._lively = time.monotonic()
