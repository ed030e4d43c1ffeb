"""A tape on which launches are noted while the stand-in for CuPy captures a CUDA graph.

    stand_in.tape = Tape(); ...launches...; replay = stand_in.tape.end(); replay()

As on a GPU, nothing has happened after a capture: arrays that were there hold what they held, new ones hold
nonsense, and only a replay computes, on the addresses of the capture, from what these hold by then.
"""

import numpy as np

NOT_WHILE_CAPTURING = "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"


def refuse():
    """Raise CUDA's error for a call that would have to wait for the device during a capture."""
    raise RuntimeError(NOT_WHILE_CAPTURING)


class Tape:
    """Launches in the order they were made."""

    def __init__(self):
        self._launches = []
        self._before = {}  # by identity of the memory's owner: the owner, and a copy of what it held
        self._made = {}

    def meet(self, *values):
        """Remember the contents of arrays that a launch may write to."""
        for array in _arrays(values):
            owner = _owner(array)
            if id(owner) not in self._made:
                self._before.setdefault(id(owner), (owner, owner.copy()))

    def note(self, function, args, keywords, results):
        """Note a launch and the arrays that it returned."""
        results = list(_arrays(results))
        for array in results:
            owner = _owner(array)
            if id(owner) not in self._before:
                self._made[id(owner)] = owner
        self._launches.append((function, args, keywords, results))

    def end(self):
        """Undo all recorded launches; return the recording, which repeats them."""
        for owner, held in reversed(self._before.values()):
            owner[...] = held
        for owner in self._made.values():
            owner.view("u1" if owner.ndim and owner.flags.c_contiguous else owner.dtype).fill(0x5A)
        return self.replay

    def replay(self):
        """Launch everything once more."""
        for function, args, keywords, results in self._launches:
            again = function(*args, **keywords)
            for old, new in zip(results, _arrays(again), strict=True):
                if not np.shares_memory(old, new):
                    old[...] = new


def _arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, np.generic):
        yield np.asarray(value)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays(part)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))
    elif getattr(value, "__self__", None) is not None:  # a method of an array
        yield from _arrays(value.__self__)


def _owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
