"""Acts that befall a rank in the middle of its work: deaths, hangs and exceptions.

stage.visit -> ACTS[number]() inside `Spot`, an Op that otherwise hands its input on
"""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from stage import COMPILING, COMPUTING, Stage

from synk.exact.rules import relate

the_stage = Stage()

# Calls into these keep the interpreter's lock: no Python code of the process runs meanwhile.
native = ctypes.PyDLL(None)


class Refused(LookupError):
    """An exception with arguments of its own."""

    def __init__(self, code, detail):
        super().__init__(code, detail)


class BadToLoad(Exception):
    """An exception that pickles, but raises when it is unpickled."""

    def __reduce__(self):
        return _fail_to_load, ()


def _fail_to_load():
    raise RuntimeError("it cannot be made again")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


def leave():
    os._exit(3)


def leave_in_peace():
    os._exit(0)


def quit():
    # Workers ignore SIGTERM, and a shell has what it starts in the background ignore SIGQUIT.
    os.kill(os.getpid(), signal.SIGVTALRM)


def swell():
    """Grow as one does whom the kernel ends for want of memory."""
    taken = [np.ones(1 << 20) for _ in range(12)]
    the_stage.strike()  # it is its end that is to be reported
    os.kill(os.getpid(), signal.SIGKILL)
    return taken


def sleep():
    time.sleep(1e6)


def pause():
    native.pause()


def spin():
    while True:
        pass


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def raise_plain():
    raise ValueError("the value is wrong")


def raise_refused():
    raise Refused(7, "with arguments")


def raise_local():
    class Local(KeyError):
        pass

    raise Local("nobody can import my class")


def raise_base():
    raise BaseException("nothing in particular")


def raise_exit():
    raise SystemExit("leaving")


def raise_unpicklable():
    error = ValueError("my lock cannot be pickled")
    error.lock = threading.Lock()
    raise error


def raise_huge():
    raise ValueError("x" * 10_000_000)


def raise_bad_to_load():
    raise BadToLoad("it fails where it is unpickled")


def raise_out_of_memory():
    raise MemoryError("no room on this rank")


def raise_recursion():
    raise_recursion()


DEATHS = (kill, segfault, abort, leave, leave_in_peace, quit, swell)
HANGS = (sleep, pause, spin, stop)
ERRORS = (
    raise_plain,
    raise_refused,
    raise_local,
    raise_base,
    raise_exit,
    raise_unpicklable,
    raise_huge,
    raise_bad_to_load,
    raise_out_of_memory,
    raise_recursion,
)
ACTS = (*DEATHS, *HANGS, *ERRORS)
NUMBERS = {act.__name__: number for number, act in enumerate(ACTS)}


class Spot(Op):
    """The input itself; where the stage says so, something happens on the way."""

    __props__ = ("place",)

    def __init__(self, place=COMPUTING):
        self.place = place

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def make_thunk(self, *arguments, **keywords):
        if self.place == COMPILING:
            self._visit()
        return super().make_thunk(*arguments, **keywords)

    def perform(self, node, inputs, outputs):
        if self.place == COMPUTING:
            self._visit()
        outputs[0][0] = inputs[0].copy()

    def _visit(self):
        act = the_stage.visit(self.place)
        if act is not None:
            ACTS[act]()


@relate.register(Spot)
def as_it_is(op, node, given):
    """Return rows for rows, parts for parts."""
    return given, given
