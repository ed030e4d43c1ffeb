"""NCCL for ranks on threads of one process, with the functions and signatures of ``cupy.cuda.nccl`` 14.

An operation returns at once and runs when all ranks have launched theirs, as on GPUs; whoever launches last
computes it. Arrays are those of ``stand_in``, so what looks at them on the host is found out.

    world = World(); library = FakeLibrary(world)  # one for each rank
    library.nccl.before = lambda name: ...  # called before a rank launches, to be late or to raise

The first message from one rank to another connects them, within ``groupEnd``: who comes first waits there for
the other, or until another rank aborts. A communicator must not be aborted while a thread waits so.

Reductions are in rank order, in the dtype they are given, and lose NaN in "min" and "max", as NCCL does. What
ranks tell NCCL must match: real ranks would wait for each other forever.
"""

import ctypes
import functools
import threading
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

from support.cupy import stand_in
from synk.gpu.comm.nccl_library import ID_BYTES, Library

DEADLINE = 20.0  # seconds for ranks that would wait for each other forever
TYPES = {"INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3, "INT64": 4, "UINT64": 5, "FLOAT32": 7, "FLOAT64": 8}
DTYPES = {code: np.dtype(name.lower()) for name, code in TYPES.items()}
SUM, PROD, MAX, MIN, AVG = range(5)
UFUNCS = {SUM: np.add, PROD: np.multiply, MAX: np.fmax, MIN: np.fmin, AVG: np.add}


class NcclError(RuntimeError):
    pass


class Operation:
    """The collectives that one rank has launched."""

    def __init__(self, name, key, source, target, peer=None):
        self.name, self.key, self.source, self.target, self.peer = name, key, source, target, peer
        self.done = False


class Clique:
    """The ranks that have connected by one id."""

    def __init__(self, n_ranks):
        self.n_ranks = n_ranks
        self.joined = set()
        self.waiting = [deque() for _ in range(n_ranks)]
        self.ready = set()  # (rank, its peer, what it does): ends of connections
        self.aborted = set()

    def connect(self, change, rank, operations):
        """Wait until the ranks that this one sends to, or receives from, have launched the same."""
        other = {"send": "recv", "recv": "send"}
        ends = [(rank, x.peer, x.name) for x in operations if x.peer is not None]
        self.ready.update(ends)
        change.notify_all()

        def are_there():
            return all((peer, me, other[name]) in self.ready for me, peer, name in ends)

        assert change.wait_for(lambda: are_there() or self.aborted, DEADLINE), "a peer never came"
        if not are_there():
            raise NcclError("NCCL_ERROR_REMOTE_ERROR")

    def progress(self):
        """Run all that can run."""
        while self._message() or self._collective():
            pass

    def _message(self):
        for rank, queue in enumerate(self.waiting):
            for send in _leading(queue, "send"):
                for receive in _leading(self.waiting[send.peer], "recv"):
                    if receive.peer == rank:
                        assert send.key == receive.key, "sender and receiver disagree"
                        _memory(receive.target, *receive.key)[...] = _memory(send.source, *send.key)
                        self._finish([(rank, send), (send.peer, receive)])
                        return True
        return False

    def _collective(self):
        heads = [queue[0] for queue in self.waiting if queue]
        if len(heads) < self.n_ranks or any(head.peer is not None for head in heads):
            return False
        told = {(head.name, head.key) for head in heads}
        assert len(told) == 1, f"ranks told NCCL different things: {told}"
        COLLECTIVES[heads[0].name](heads, *heads[0].key)
        self._finish(list(enumerate(heads)))
        return True

    def _finish(self, operations):
        for rank, operation in operations:
            self.waiting[rank].remove(operation)
            operation.done = True


def _leading(queue, name):
    """Yield messages that no collective keeps waiting."""
    for operation in queue:
        if operation.peer is None:
            return
        if operation.name == name:
            yield operation


def _memory(pointer, count, code):
    dtype = DTYPES[code]
    return np.frombuffer((ctypes.c_byte * (count * dtype.itemsize)).from_address(pointer), dtype)


def _combined(operations, count, code, op):
    terms = [_memory(operation.source, count, code) for operation in operations]
    with np.errstate(all="ignore"):
        if op == AVG:
            assert terms[0].dtype.kind == "f", "NCCL divides integers and drops the rest"
            terms = [term * terms[0].dtype.type(1 / len(terms)) for term in terms]
        return functools.reduce(UFUNCS[op], terms).astype(terms[0].dtype)


def _all_reduce(operations, count, code, op):
    result = _combined(operations, count, code, op)
    for operation in operations:
        _memory(operation.target, count, code)[...] = result


def _reduce(operations, count, code, op, root):
    _memory(operations[root].target, count, code)[...] = _combined(operations, count, code, op)


def _broadcast(operations, count, code, root):
    sent = _memory(operations[root].source, count, code).copy()
    for operation in operations:
        _memory(operation.target, count, code)[...] = sent


def _all_gather(operations, count, code):
    parts = [_memory(operation.source, count, code) for operation in operations]
    joined = np.concatenate(parts)
    for operation in operations:
        _memory(operation.target, count * len(operations), code)[...] = joined


COLLECTIVES = {"allReduce": _all_reduce, "reduce": _reduce, "broadcast": _broadcast, "allGather": _all_gather}


class World:
    """The state that ranks of one process share: a lock, and the cliques that have been made."""

    def __init__(self):
        self.change = threading.Condition()
        self.cliques = {}
        self.made = 0

    def join(self, unique_id, n_ranks, rank):
        with self.change:
            clique = self.cliques.setdefault(unique_id, Clique(n_ranks))
            assert rank not in clique.joined, "a rank joined twice"
            clique.joined.add(rank)
            self.change.notify_all()
            assert self.change.wait_for(lambda: len(clique.joined) == n_ranks, DEADLINE), "a rank never came"
            return clique


class Module:
    """The constants of the module."""

    NcclError = NcclError
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = SUM, PROD, MAX, MIN, AVG


for _name, _code in TYPES.items():
    setattr(Module, f"NCCL_{_name}", _code)


class FakeNccl(Module):
    """The module, as one rank sees it."""

    def __init__(self, world):
        self.world = world
        self.launched = []  # operations, of all communicators of the rank
        self._of_thread = threading.local()
        self.made = []  # communicators
        self.inside = False  # whether a thread waits for other ranks
        self.before = lambda name: None
        self.at_abort = lambda: None

    def get_version(self):
        return 23004

    def get_unique_id(self):
        with self.world.change:
            self.world.made += 1
            return self.world.made.to_bytes(ID_BYTES, "little")

    def NcclCommunicator(self, n_ranks, unique_id, rank):
        self.before("connect")
        assert type(unique_id) is bytes
        assert len(unique_id) == ID_BYTES
        communicator = FakeCommunicator(self, self.world.join(unique_id, n_ranks, rank), rank)
        self.made.append(communicator)
        return communicator

    @property
    def group(self):
        """Return a context that holds back operations until it ends, on each thread by itself."""
        return getattr(self._of_thread, "group", None)

    @group.setter
    def group(self, operations):
        self._of_thread.group = operations

    def groupStart(self):
        assert self.group is None
        self.group = []

    def groupEnd(self):
        held, self.group = self.group, None
        for clique, rank in {(clique, rank) for clique, rank, _ in held}:
            self.inside = True
            try:
                with self.world.change:
                    clique.connect(self.world.change, rank, [operation for _, _, operation in held])
            finally:
                self.inside = False
        for clique, rank, operation in held:
            self._post(clique, rank, operation)

    def launch(self, clique, rank, operation):
        self.before(operation.name)
        if self.group is None:
            self._post(clique, rank, operation)
        else:
            self.group.append((clique, rank, operation))

    def _post(self, clique, rank, operation):
        self.launched.append(operation)
        with self.world.change:
            clique.waiting[rank].append(operation)
            clique.progress()


class Calls:
    """The calls of a communicator, each as an operation."""

    def allReduce(self, source, target, count, dtype, op, stream):
        self._launch(stream, Operation("allReduce", (count, dtype, op), source, target))

    def reduce(self, source, target, count, dtype, op, root, stream):
        self._launch(stream, Operation("reduce", (count, dtype, op, root), source, target))

    def broadcast(self, source, target, count, dtype, root, stream):
        self._launch(stream, Operation("broadcast", (count, dtype, root), source, target))

    def allGather(self, source, target, count, dtype, stream):
        self._launch(stream, Operation("allGather", (count, dtype), source, target))

    def send(self, source, count, dtype, peer, stream):
        self._launch(stream, Operation("send", (count, dtype), source, None, peer))

    def recv(self, target, count, dtype, peer, stream):
        self._launch(stream, Operation("recv", (count, dtype), None, target, peer))


class FakeCommunicator(Calls):
    """One rank's."""

    def __init__(self, nccl, clique, rank):
        self._nccl, self._clique, self._rank = nccl, clique, rank
        self.aborted = False
        self.async_error = None

    def _launch(self, stream, operation):
        assert stream == FakeLibrary.STREAM
        assert not self.aborted
        assert operation.key[0] > 0, "nothing to move"
        self._nccl.launch(self._clique, self._rank, operation)

    def check_async_error(self):
        assert not self.aborted
        if self.async_error is not None:
            raise self.async_error

    def abort(self):
        assert not self.aborted
        assert not self._nccl.inside, "aborted while a thread is inside"
        self._nccl.at_abort()
        self.aborted = True
        with self._nccl.world.change:
            self._clique.aborted.add(self._rank)
            self._nccl.world.change.notify_all()
            self._clique.waiting[self._rank].clear()


class FakeLibrary(Library):
    """One rank's, on the memory of this process."""

    STREAM = 77

    def __init__(self, world):
        self.nccl = FakeNccl(world)
        runtime = SimpleNamespace(getDevice=lambda: 0)
        super().__init__(SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)), self.nccl)
        self.xp = stand_in

    def on_device(self):
        return nullcontext()

    def connect(self, n_ranks, unique_id, rank):
        return self.nccl.NcclCommunicator(n_ranks, unique_id, rank)

    def pointer(self, array):
        return array._value.ctypes.data

    def stream(self):
        return self.STREAM

    def mark(self):
        launched = list(self.nccl.launched)
        self.nccl.launched.clear()
        return lambda: all(operation.done for operation in launched)
