"""Ranks that are threads of one process: they implement `synk.transport.commands.interfaces`, too.

Messages are pickled, as between processes, so that no rank sees another one's objects. Nothing is shared but
a `Meeting`, at which ranks wait for each other and lay down arrays.
"""

import pickle
import queue
import threading
import time
from functools import reduce

import numpy as np

from synk.run.arrays.variables import RankVariables
from synk.run.device.cpu import CpuDevice
from synk.run.rank.loop import serve
from synk.run.rank.rank import Rank
from synk.transport.comm.communicator import Communicator, copies
from synk.transport.commands.interfaces import Aborted, Death
from synk.transport.memory.segments import SegmentTable
from synk.values import messages
from synk.values.errors import SynkTimeout

LOOK_SECONDS = 0.01
DEADLINE = 10.0  # seconds, after which ranks that wait for each other would wait forever
ABANDONED = -1  # instead of a command that a rank has failed in: it comes to no meeting any more
UFUNCS = {"avg": np.add, "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


class Meeting:
    """The meeting point of all ranks of a run, on threads."""

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.changed = threading.Condition()
        self.arrays = {}  # by (command, meeting in it), then by rank
        self.failed = {}  # by rank, the command, or ABANDONED
        self.dead = set()


class ThreadPeers:
    """The other ranks, as one rank sees them: `Peers`."""

    def __init__(self, rank, meeting, on_late=lambda late: None, on_death=None):
        self.rank, self.n_ranks, self.machine = rank, meeting.n_ranks, None
        self.place, self.n_places = rank, meeting.n_ranks
        self.phase = [messages.IDLE]
        self._meeting = meeting
        self._on_late, self._on_death = on_late, on_death
        self._command = self._count = 0

    def begin(self, command):
        self._command, self._count = command, 0

    def fail(self):
        if self._meeting.failed.get(self.rank) != ABANDONED:
            self._tell_failed(self._command)

    def abandon(self):
        self._tell_failed(ABANDONED)

    def _tell_failed(self, command):
        with self._meeting.changed:
            self._meeting.failed[self.rank] = command
            self._meeting.changed.notify_all()

    def exchange(self, array):
        """Contribute an array; return the arrays of all ranks, once all have contributed."""
        meeting, self._count = self._meeting, self._count + 1
        began = time.monotonic()
        with meeting.changed:
            there = meeting.arrays.setdefault((self._command, self._count), {})
            there[self.rank] = array
            meeting.changed.notify_all()
            while len(there) < self.n_ranks:
                late = [rank for rank in range(self.n_ranks) if rank not in there]
                if any(meeting.failed.get(rank) in (self._command, ABANDONED) for rank in late):
                    raise Aborted
                if self._on_death is not None and meeting.dead & {*late}:
                    self._on_death(min(meeting.dead))
                self._on_late(late)
                assert time.monotonic() - began < DEADLINE, f"rank {self.rank} still waits for {late}"
                meeting.changed.wait(LOOK_SECONDS)
        return [there[rank] for rank in range(self.n_ranks)]


class ThreadCommunicator(Communicator):
    """Arrays are copied, laid down, and read by all."""

    def __init__(self, peers):
        super().__init__(peers.rank, peers.n_ranks)
        self._peers = peers

    def all_gather(self, array, shared=None, read=copies):
        return read(self._peers.exchange(np.array(array)))

    def gather(self, array, root=0, shared=None, read=copies, only=None):
        arrays = self._peers.exchange(np.array(array))
        if self.rank != root:
            return None
        return read(arrays if only is None else [arrays[only]])

    def all_reduce(self, array, op, shared=None):
        combined = reduce(UFUNCS[op], self._peers.exchange(np.array(array)))
        return combined / self.n_ranks if op == "avg" else combined

    def reduce(self, array, op, root=0, shared=None, in_place=False):
        combined = self.all_reduce(array, op)
        return combined if self.rank == root else None

    def broadcast(self, array, root=0, shared=None):
        return self._peers.exchange(np.array(array))[root].copy()


def make_rank(peers):
    """Return a rank that computes on cores."""
    device = CpuDevice(1)
    variables = RankVariables(peers.rank, device.to_host, device.from_host)
    return Rank(peers, ThreadCommunicator(peers), device, SegmentTable(), variables)


class Inbox:
    """A worker's way to the master: `CommandSource`."""

    def __init__(self):
        self._messages, self.replies = queue.Queue(), queue.Queue()

    def put(self, message):
        self._messages.put(pickle.dumps(message))

    def receive(self):
        return pickle.loads(self._messages.get()), None

    def pending(self):
        return not self._messages.empty()

    def reply(self, message):
        self.replies.put(pickle.dumps(message))


class ThreadChannel:
    """The master's way to all workers: `Channel`."""

    def __init__(self, inboxes, meeting, on_death, on_late):
        self._inboxes, self._meeting = inboxes, meeting
        self._on_death, self._on_late = on_death, on_late
        self._replies = {}
        self.waiting = self.torn = False

    def command(self, command):
        self.waiting, self._replies = True, {}
        self.post(command)

    def post(self, message, descriptor=None):
        assert descriptor is None, "threads attach no segments"
        for inbox in self._inboxes:
            inbox.put(message)

    def collect(self, seconds=None):
        began = time.monotonic()
        for rank, inbox in enumerate(self._inboxes, start=1):
            while rank not in self._replies:
                try:
                    self._replies[rank] = pickle.loads(inbox.replies.get(timeout=LOOK_SECONDS))
                except queue.Empty:
                    if rank in self._meeting.dead:
                        self._on_death(rank)
                    if seconds is not None and time.monotonic() - began > seconds:
                        raise TimeoutError("not all workers have answered") from None
                    assert time.monotonic() - began < DEADLINE, f"rank {rank} has not answered"
                    self._on_late([rank])
        self.waiting = False
        return [self._replies[rank] for rank in sorted(self._replies)]

    def close(self):
        pass


class ThreadWorkers:
    """The workers of a run: `Workers`."""

    show_output = None

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.meeting = Meeting(n_ranks)
        self._peers = [ThreadPeers(rank, self.meeting) for rank in range(1, n_ranks)]
        self.ranks = [make_rank(peers) for peers in self._peers]
        self._inboxes = [Inbox() for _ in self.ranks]
        self._threads = [
            threading.Thread(target=serve, args=(rank, inbox, lambda: None), daemon=True)
            for rank, inbox in zip(self.ranks, self._inboxes, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def open_channel(self, on_death, on_late):
        return ThreadChannel(self._inboxes, self.meeting, on_death, on_late)

    def peers(self, on_death, on_late):
        """Return the peers of rank 0."""
        return ThreadPeers(0, self.meeting, on_late, on_death)

    def kill(self, rank):
        """Let a worker be found dead."""
        with self.meeting.changed:
            self.meeting.dead.add(rank)
            self.meeting.changed.notify_all()

    def look(self, deadline, late):
        if deadline.has_passed():
            raise SynkTimeout(deadline.seconds, deadline.label, tuple(late), ())

    def death(self, rank):
        return Death(0, "a test", messages.PHASES[self._peers[rank - 1].phase[0]], "")

    def pids(self):
        return tuple(range(self.meeting.n_ranks))

    def dismiss(self, seconds):
        for peers, inbox in zip(self._peers, self._inboxes, strict=True):
            peers.abandon()
            inbox.put(messages.Close())
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        return {}
