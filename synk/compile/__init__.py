"""Compile PyTensor graphs to array programs, and carry graphs between processes.

The way of a graph through ``pytensor.function(..., mode=array_mode())``; each name is a module here:

    mode             pairs the linker with its rewrites
    rewrites         chooses PyTensor's; adds keep (the user's lines), shapes (in linear time), kernels.fusion
    linker           hands the rewritten graph to emit, and runs its program when the function is called
    emit             asks the passes in turn, and has their Plan written down:
      schedule         the order in which nodes let go of memory soonest
      lazy             the order of the nodes, and which run only if a condition holds
      place            host or device for each node, and which values cross
        dispatch         the implementation of each node, one entry per Op, some of them kernels
      memory           which values share memory
      destination      which results are written where an update, or a join, wants them
      reuse            which elementwise results are written over an input that nothing needs any more
      last_uses        where values are deleted (in emit)
      writer, text     the lines of the program
    program          the compiled text; what it calls beside implementations is in transfer and buffers,
                     and when one fails, blame and origin name its node and the user's line

An observer stands around every node: ``debug`` asks ``checks``; ``profile`` keeps a ``ledger`` of memory,
counts ``flops`` and makes a ``report``. Graphs go to other processes by ``serialize`` (dumps, loads), and
``substitute`` replaces variables in them. ``compat`` holds every difference between versions of PyTensor.

Imports NumPy, SciPy and PyTensor only, nothing else of synk.
"""

from synk.compile.debug import Debug, DebugError, debug_mode
from synk.compile.dispatch import array_funcify, array_scalar
from synk.compile.emit import emit
from synk.compile.linker import ArrayLinker
from synk.compile.mode import array_mode
from synk.compile.profile import Profile
from synk.compile.program import Program
from synk.compile.serialize import dumps, loads
from synk.compile.substitute import substitute

__all__ = [
    "ArrayLinker",
    "Debug",
    "DebugError",
    "Profile",
    "Program",
    "array_funcify",
    "array_mode",
    "array_scalar",
    "debug_mode",
    "dumps",
    "emit",
    "loads",
    "substitute",
]
