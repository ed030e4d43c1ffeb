"""Leaders of up to 64 machines that are threads of one process: another implementation of `Leaders`.

Messages and bytes that each machine sends are counted.
"""

import threading
import time
from functools import reduce

import numpy as np

from synk.transport.base import Aborted

LOOK_SECONDS = 0.01
DEADLINE = 20.0  # seconds, after which machines that wait for each other would wait forever
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def thread_leaders(n_machines):
    """Return the leaders of so many machines, in the order of machines."""
    meeting = Meeting()
    return [ThreadLeaders(machine, n_machines, meeting) for machine in range(n_machines)]


class Meeting:
    """Where all leaders meet."""

    def __init__(self):
        self.changed = threading.Condition()
        self.brought = {}  # by (command, meeting in it), then by machine
        self.failed = {}  # by machine, the command


class ThreadLeaders:
    """The leaders of all machines, as one of them sees them: `Leaders`.

    Attributes
    ----------
    messages, nbytes : int
        Sent by this machine so far.
    """

    def __init__(self, machine, n_machines, meeting):
        self.machine, self.n_machines = machine, n_machines
        self.messages = self.nbytes = 0
        self._meeting = meeting
        self._command = self._count = 0

    def begin(self, command):
        self._command, self._count = command, 0

    def fail(self):
        self._sent(self.n_machines - 1, 0)
        with self._meeting.changed:
            self._meeting.failed[self.machine] = self._command
            self._meeting.changed.notify_all()

    def all_gather(self, payload, watch):
        self._sent((self.n_machines - 1).bit_length(), len(payload) * (self.n_machines - 1))
        return self._exchange(bytes(payload), watch)

    def all_reduce(self, array, op, watch):
        assert array.ndim == 1, "arrays are flat"
        assert array.flags.c_contiguous, "arrays are contiguous"
        others = self.n_machines - 1
        self._sent(2 * others, 2 * array.nbytes * others // self.n_machines)
        brought = self._exchange(array.copy(), watch)
        assert {(one.dtype, one.size) for one in brought} == {(array.dtype, array.size)}
        array[...] = reduce(UFUNCS[op], brought)

    def close(self):
        pass

    def _sent(self, messages, nbytes):
        self.messages += messages
        self.nbytes += nbytes

    def _exchange(self, mine, watch):
        """Lay something down; return what all machines have, once all have come."""
        meeting, self._count = self._meeting, self._count + 1
        began = time.monotonic()
        with meeting.changed:
            there = meeting.brought.setdefault((self._command, self._count), {})
            there[self.machine] = mine
            meeting.changed.notify_all()
            while len(there) < self.n_machines:
                late = [machine for machine in range(self.n_machines) if machine not in there]
                if any(meeting.failed.get(machine) == self._command for machine in late):
                    raise Aborted
                meeting.changed.wait(LOOK_SECONDS)
                watch()
                assert time.monotonic() - began < DEADLINE, f"machine {self.machine} still waits for {late}"
        return [there[machine] for machine in range(self.n_machines)]
