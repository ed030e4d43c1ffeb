"""NCCL for the ranks of a whole run, each a process, in the form of ``cupy.cuda.nccl`` 14.

    nccl = fake_nccl_runs.install(fake_cupy.make(), n_ranks)  # and then synk.fork(n_ranks, device="cuda")
    nccl.before = lambda rank, name: ...  # called in the rank before it launches, to be late or to die

What ranks launch goes through memory that they inherit. An operation runs once all have launched theirs; that
is looked for when an event is asked for, as synk does. Nothing runs by itself. Arithmetic, and what it does
with NaN, is that of `fake_nccl`. Like NCCL, it refuses ranks on one device before version 2.30, and from then
on where nobody has allowed it; and it waits for a peer within the first message to or from it, and for all
ranks within the first collective of each kind, unless NCCL_RUNTIME_CONNECT=0 has had them connected before.
"""

import ctypes
import mmap
import os
import pickle
import sys
import threading
import time
from itertools import count

import numpy as np

from support.communicators.fake_nccl import (
    COLLECTIVES,
    DEADLINE,
    DTYPES,
    Calls,
    Module,
    NcclError,
    Operation,
)
from support.processes.waiting import wait_until
from synk.gpu.comm.nccl_library import ID_BYTES, NOT_READY

SLOT = 1 << 20  # bytes that a rank can bring
WORDS = JOINED, DEVICE, POSTED, LENGTH, FINISHED, GONE = range(6)


def install(cupy, n_ranks, version=23004):
    """Add the parts of NCCL, events and runtime that synk calls to the fake CuPy; return the fake module."""
    nccl = Nccl(cupy, Wire(n_ranks), version)
    cuda = cupy.cuda
    devices = threading.local()

    def enter(device):
        devices.before = cuda.Device()
        device.use()

    cuda.Device.__enter__, cuda.Device.__exit__ = enter, lambda device, *error: devices.before.use()
    cuda.Event, cuda.nccl = event_class(nccl, cuda.Event), nccl
    cuda.runtime.getDevice = lambda: cuda.Device().id
    cuda.runtime.eventQuery = lambda pointer: 0 if nccl.events[pointer]() else NOT_READY
    sys.modules["cupy.cuda"] = cuda
    return nccl


class Wire:
    """Memory that all ranks see: words and a slot for each."""

    def __init__(self, n_ranks):
        memory = mmap.mmap(-1, n_ranks * (SLOT + 8 * len(WORDS)))
        self.slots = np.frombuffer(memory, np.uint8, n_ranks * SLOT).reshape(n_ranks, SLOT)
        self.words = np.frombuffer(memory, np.int64, offset=n_ranks * SLOT).reshape(n_ranks, len(WORDS))


class Nccl(Module):
    """The module."""

    available = True

    def __init__(self, cupy, wire, version):
        self.cupy, self.wire, self.version = cupy, wire, version
        self.before = lambda rank, name: None
        self.events = {}  # by pointer, whether what was launched before is done
        self.last = lambda: True
        self.look = lambda: None  # raises where a rank should wait no longer
        self.group = None
        self.live = 0  # communicators of this process
        self._ids = count(1)

    def get_version(self):
        return self.version

    def get_unique_id(self):
        return (os.getpid() << 20 | next(self._ids)).to_bytes(ID_BYTES, "little")

    def NcclCommunicator(self, n_ranks, unique_id, rank):
        assert len(unique_id) == ID_BYTES
        words, clique = self.wire.words, int.from_bytes(unique_id, "little")
        words[rank, DEVICE] = self.cupy.cuda.Device().id
        words[rank, JOINED] = clique
        wait_until(lambda: (words[:, JOINED] == clique).all(), DEADLINE, "a rank never came")
        allowed = self.version >= 23000 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") != "0"
        if len(set(words[:, DEVICE].tolist())) < n_ranks and not allowed:
            raise NcclError("Duplicate GPU detected")
        self.live += 1
        return Communicator(self, clique, rank)

    def groupStart(self):
        self.group = []

    def groupEnd(self):
        (communicator, *_), operations = zip(*self.group, strict=True) if self.group else ([None], [])
        self.group = None
        if communicator is not None:
            communicator.post(list(operations))


def event_class(nccl, base):
    """Return a class of events that know whether the work launched before them is done."""

    class Event(base):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            self.ptr = len(nccl.events) + 1

        def record(self, stream=None):
            super().record(stream)
            nccl.events[self.ptr] = nccl.last

    return Event


class Communicator(Calls):
    """One rank's."""

    def __init__(self, nccl, clique, rank):
        self._nccl, self._wire, self._rank = nccl, nccl.wire, rank
        self._ticket = clique << 20  # of the last launch; the same on every rank
        self._aborted = False
        self._inside = False  # whether a thread waits for other ranks
        self._connected = set()  # kinds of collectives, and ends of messages

    def check_async_error(self):
        assert not self._aborted

    def abort(self):
        assert not self._aborted
        assert not self._inside, "aborted while a thread is inside"
        self._wire.words[self._rank, GONE] = self._ticket >> 20
        self._aborted = True
        self._nccl.live -= 1

    def _launch(self, stream, operation):
        assert not self._aborted
        assert stream in {known.ptr for known in self._nccl.cupy.cuda.machine.streams}
        self._nccl.before(self._rank, operation.name)
        if self._nccl.group is None:
            self.post([operation])
        else:
            self._nccl.group.append((self, operation))

    def post(self, operations):
        """Publish the data that this rank sends, after the list of operations that it has launched."""
        self._wait_for_the_one_before()
        self._ticket += 1
        told, data, start = [], [], 0
        for operation in operations:
            told.append((operation.name, operation.key, operation.peer, start))
            if operation.source is not None:
                data.append(_bytes(operation.source, _nbytes(operation)).copy())
                start += len(data[-1])
        words, slot = self._wire.words[self._rank], self._wire.slots[self._rank]
        listed = np.frombuffer(pickle.dumps(told), np.uint8)
        slot[: len(listed) + start] = np.concatenate([listed, *data])
        words[LENGTH] = len(listed)
        words[POSTED] = ticket = self._ticket
        finished = []

        def done():
            if not finished and (self._wire.words[:, POSTED] == ticket).all():
                self._finish(operations)
                finished.append(True)
                words[FINISHED] = ticket
            return bool(finished)

        self._nccl.last = done
        self._connect(operations, ticket)

    def _connect(self, operations, ticket):
        """Wait for the ranks with which this one has not yet had such an operation, as NCCL connects them."""
        needed = set()
        for operation in operations:
            kind = operation.name, operation.peer
            is_message = operation.peer is not None
            if kind in self._connected or not (is_message or os.environ.get("NCCL_RUNTIME_CONNECT") != "0"):
                continue
            needed |= {operation.peer} if is_message else {*range(len(self._wire.words))}
            self._connected.add(kind)
        deadline = time.monotonic() + DEADLINE
        self._inside = True
        try:
            while any(self._wire.words[rank, POSTED] < ticket for rank in needed):
                if (self._wire.words[:, GONE] == ticket >> 20).any():
                    raise NcclError("NCCL_ERROR_REMOTE_ERROR")
                assert time.monotonic() < deadline, "a rank never came"
                time.sleep(1e-4)
        finally:
            self._inside = False

    def _wait_for_the_one_before(self):
        """Wait until all ranks have read the last data of this rank, so that it may publish others."""
        last, words, rank = self._nccl.last, self._wire.words, self._rank
        mine = int(words[rank, POSTED])
        deadline = time.monotonic() + DEADLINE
        while mine == self._ticket and not (last() and (words[:, FINISHED] >= mine).all()):
            self._nccl.look()
            assert time.monotonic() < deadline, "a rank never launched"
            time.sleep(1e-4)

    def _finish(self, operations):
        brought = [self._brought(rank) for rank in range(len(self._wire.words))]
        for number, operation in enumerate(operations):
            if operation.name == "send":
                continue
            if operation.name == "recv":
                # Messages between two ranks come in the order they were sent.
                sent = next(x for x in brought[operation.peer] if x.name == "send" and x.peer == self._rank)
                brought[operation.peer].remove(sent)
                assert sent.key == operation.key, "sender and receiver disagree"
                _bytes(operation.target, _nbytes(operation))[:] = _bytes(sent.source, _nbytes(sent))
                continue
            all_ranks = [of_rank[number] for of_rank in brought]
            assert {(x.name, x.key) for x in all_ranks} == {(operation.name, operation.key)}
            room = np.empty(_nbytes(operation) * len(all_ranks), np.uint8)  # for what is another rank's
            for x in all_ranks:
                x.target = room.ctypes.data
            all_ranks[self._rank].target = operation.target or room.ctypes.data
            COLLECTIVES[operation.name](all_ranks, *operation.key)

    def _brought(self, rank):
        slot, length = self._wire.slots[rank], int(self._wire.words[rank, LENGTH])
        where = slot.ctypes.data + length
        return [
            Operation(name, key, where + start, None, peer)
            for name, key, peer, start in pickle.loads(slot[:length].tobytes())
        ]


def _nbytes(operation):
    number, code = operation.key[:2]
    return number * DTYPES[code].itemsize


def _bytes(pointer, nbytes):
    return np.frombuffer((ctypes.c_byte * nbytes).from_address(pointer), np.uint8)
