"""Streams, events and page-locked memory that pass for CUDA's, as late as CUDA may be.

    machine = Machine(log, current); machine.Stream, machine.Event, machine.PinnedMemory, machine.runtime

Copies from page-locked memory are carried out when somebody waits for them and not before: by ``wait_event``
of a stream that computes, or on the host. Who forgets to wait reads old numbers; who writes too early to the
memory that is copied from has the new ones copied. Kernels of the stand-in run at once, so the opposite
mistake, to copy over what a kernel may still be reading, gives no wrong numbers here: `Race` is raised
instead, by comparing what each stream knows to be over. ``machine.mistakes`` lists what was found where
nothing can be raised.

Copies from pageable memory wait for all before them, and are over when they return, as CUDA's.
"""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np

from support.cupy import stand_in
from support.cupy.tape import Tape, refuse


class CUDARuntimeError(RuntimeError):
    """The error of CUDA's runtime, as CuPy raises it."""

    def __init__(self, name, status):
        super().__init__(f"{name}: {status}")
        self.status = status


class Race(AssertionError):
    """A copy was launched that may overwrite memory before an earlier launch has read it."""


class Machine:
    """The streams of one GPU, and how far the host knows them to be.

    Parameters
    ----------
    log : list
        Of what is asked for.
    current : threading.local
        Has the thread's ``stream``.
    """

    def __init__(self, log, current):
        self.log, self.current = log, current
        self.known = {}  # by stream, up to where the host has waited
        self.reads = {}  # by address of memory that was copied to: stream -> when it was last read
        self.locked = {}  # address -> bytes, of page-locked memory
        self.streams = []
        self.mistakes = []
        self.n_copies = 0
        self.room = None  # bytes of page-locked memory there may be
        self.turn = threading.RLock()
        machine = self

        class Stream(_Stream):
            def __init__(self, null=False, non_blocking=False):
                super().__init__(machine, "null" if null else "non-blocking" if non_blocking else "blocking")

        class Event(_Event):
            def __init__(self, block=False, disable_timing=False, interprocess=False):
                super().__init__(machine)

        class PinnedMemory(_PinnedMemory):
            def __init__(self, size, flags=0):
                super().__init__(machine, size)

        self.Stream, self.Event, self.PinnedMemory = Stream, Event, PinnedMemory
        self.runtime = SimpleNamespace(
            memcpyHostToDevice=1,
            memcpyAsync=self.memcpy_async,
            deviceSynchronize=self.synchronize,
            CUDARuntimeError=CUDARuntimeError,
        )
        stand_in.on_use, stand_in.on_upload = self.used, self.uploaded

    # --- what kernels do -------------------------------------------------------------------------

    def used(self, array, waits=False):
        """Note that the current stream reads or writes an array of the device, at once."""
        stream = getattr(self.current, "stream", None)
        if stream is None or not self.reads:
            return
        with self.turn:
            address = address_of(root(array))
            if address in self.reads:
                self.reads[address][stream] = stream.step()
            if waits:
                stream.drain()

    # --- copies ----------------------------------------------------------------------------------

    def uploaded(self, array):
        """Note a page-locked array, which CuPy copies later, without staging it first."""
        if array.size and array.flags.c_contiguous and self.is_locked(address_of(array), array.nbytes):
            self.mistakes.append("page-locked memory was given to CuPy, which may read it later")

    def memcpy_async(self, dst, src, size, kind, stream):
        assert kind == 1, "rows go to the device"
        stream = next(s for s in self.streams if s.ptr == stream)
        with self.turn:
            target = stand_in.memory_at(dst, size)
            if target is None:
                raise CUDARuntimeError("cudaErrorInvalidValue", 1)
            self._check_order(address_of(target), stream)
            self.n_copies += 1
            stand_in.counts.uploads += 1
            stream.step()
            if self.is_locked(src, size):
                stream.queue.append(("copy", dst, src, size))
            else:
                stream.drain()
                ctypes.memmove(dst, src, size)

    def _check_order(self, address, stream):
        stream.learn(self.known)
        for reader, when in self.reads.setdefault(address, {}).items():
            if reader is not stream and stream.clock.get(reader, 0) < when:
                raise Race("memory is copied to that another stream may still read: it waits for no event")

    def is_locked(self, address, size):
        return any(start <= address and address + size <= start + n for start, n in self.locked.items())

    def copies_from(self, start, length):
        """Return whether a copy from this memory has not been carried out."""
        waiting = [entry for s in self.streams for entry in s.queue if entry[0] == "copy"]
        return any(start <= src < start + length for _, _, src, _ in waiting)

    def synchronize(self):
        with self.turn:
            for stream in self.streams:
                stream.drain()

    def host_knows(self, event):
        """Return whether the host has waited for all that comes before an event."""
        return all(self.known.get(stream, 0) >= when for stream, when in event.clock.items())


class _Stream:
    def __init__(self, machine, name):
        self.machine, self.name = machine, name
        self.clock = {}  # by stream, up to where its work is over when what comes next here begins
        self.queue = []  # ("copy", dst, src, size) | ("record", event, number) | ("wait", stream, number)
        self.n_records = 0
        machine.streams.append(self)

    ptr = property(lambda self: id(self))
    done = property(lambda self: not self.queue)

    def use(self):
        self.machine.current.stream = self
        self.machine.log.append(("stream", self.name))
        return self

    def synchronize(self):
        if stand_in.tape is not None:
            refuse()
        with self.machine.turn:
            self.drain()
        self.machine.log.append(("waited for", self.name))

    def begin_capture(self, mode=None):
        if self.name == "null":
            raise RuntimeError("cudaErrorStreamCaptureUnsupported: the null stream cannot capture")
        stand_in.tape = Tape()

    def is_capturing(self):
        return stand_in.tape is not None

    def end_capture(self):
        tape, stand_in.tape = stand_in.tape, None
        return Graph(tape.end(), self)

    def record(self, event=None):
        event = self.machine.Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event):
        with self.machine.turn:
            self.learn(self.machine.known)
            if event.stream is None:
                return
            self.learn(event.clock)
            self.queue.append(("wait", event.stream, event.number))
            if not any(entry[0] == "copy" for entry in self.queue):
                self.run(None)  # kernels, which are not in the queue, find it done

    # --- inside ------------------------------------------------------------------------------------

    def step(self):
        self.learn(self.machine.known)
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def learn(self, clock):
        for stream, when in clock.items():
            self.clock[stream] = max(when, self.clock.get(stream, 0))

    def drain(self):
        """Carry out everything, and let the host know."""
        self.run(None)
        for stream, when in self.clock.items():
            self.machine.known[stream] = max(when, self.machine.known.get(stream, 0))

    def run(self, until):
        """Execute the queue of a stream up to an event's record, if that is still queued."""
        if until is not None and ("record", until) not in self.queue:
            return
        while self.queue:
            entry = self.queue.pop(0)
            if entry[0] == "copy":
                _, dst, src, size = entry
                assert self.machine.is_locked(src, size), "memory was freed while it was copied from"
                assert stand_in.memory_at(dst, size) is not None, "memory was freed while it was copied to"
                ctypes.memmove(dst, src, size)
            elif entry[0] == "wait":
                entry[1].run(entry[2])
            elif entry[1] == until:
                return


class Graph:
    """The graph that a capture returns."""

    def __init__(self, replay, stream):
        self._replay, self._stream = replay, stream

    def launch(self, stream=None):
        stream = stream or self._stream
        stream.machine.log.append(("graph", stream.name))
        self._replay()


class _Event:
    def __init__(self, machine):
        self.machine, self.stream, self.number, self.clock = machine, None, 0, {}

    @property
    def done(self):
        return self.stream is None or ("record", self.number) not in self.stream.queue

    def record(self, stream=None):
        with self.machine.turn:
            stream = self.machine.current.stream if stream is None else stream
            stream.step()
            stream.n_records += 1
            self.stream, self.number, self.clock = stream, stream.n_records, dict(stream.clock)
            stream.queue.append(("record", self.number))
            if not any(entry[0] == "copy" for entry in stream.queue):
                stream.run(None)

    def synchronize(self):
        with self.machine.turn:
            if self.stream is not None:
                self.stream.run(self.number)
                for stream, when in self.clock.items():
                    self.machine.known[stream] = max(when, self.machine.known.get(stream, 0))


class _PinnedMemory:
    def __init__(self, machine, size):
        if machine.room is not None and sum(machine.locked.values()) + size > machine.room:
            raise CUDARuntimeError("cudaErrorMemoryAllocation", 2)
        self.machine, self.size = machine, size
        self.array = np.full(size, 0xAB, np.uint8)
        self.ptr = address_of(self.array)
        machine.locked[self.ptr] = size

    def __del__(self):
        if hasattr(self, "ptr"):
            with self.machine.turn:
                if self.machine.copies_from(self.ptr, self.size):
                    self.machine.mistakes.append("page-locked memory was freed while it was copied from")
                del self.machine.locked[self.ptr]


def PinnedMemoryPointer(mem, offset):
    """Make a pointer with the buffer interface, which classes in Python get from Python 3.12 on only."""
    kind = type("PinnedMemoryPointer", (ctypes.c_char * (mem.size - offset),), {})
    pointer = kind.from_address(mem.ptr + offset)
    pointer.mem, pointer.ptr = mem, mem.ptr + offset
    return pointer


def root(array):
    """Return the NumPy array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def address_of(array):
    return array.__array_interface__["data"][0]
