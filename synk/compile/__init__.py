"""Compile PyTensor graphs to array programs, and carry graphs between processes.

The way of a graph through ``pytensor.function(..., mode=array_mode())``; names are modules and rooms here:

    mode             pairs the linker with its rewrites
    rewriting/       rewrites, which chooses PyTensor's; keep (the user's lines), shapes and supervisor (in
                     linear time); elementwise.fusion is chosen too
    linker           hands the rewritten graph to emit, and runs its program when the function is called
    emit             asks the passes in turn, and has their Plan written down:
      passes/          lazy          the order of the nodes, and which run only if a condition holds
                       place         host or device for each node, and which values cross
                       narrow        which values are kept in 16 bits, if that is asked for
                       memory        which values share memory
                       destination   which results are written where an update, or a join, wants them
                       reuse         which results are written over an input that nothing needs any more
      dispatch/        the implementation of each node, one entry per Op, some of them by elementwise/
      programs/        writer and text write the lines; program is what they become, with what it calls beside
                       implementations (transfer, buffers, draws), and whom to blame when one fails (blame,
                       origin)

An observer stands around every node (observe/): ``debug`` asks ``checks``; ``profile`` keeps a ``ledger`` of
memory, counts ``flops`` and makes a ``report``. Graphs go to other processes by ``serialize`` (dumps, loads),
and ``substitute`` replaces variables in them. ``compat`` holds every difference between versions of PyTensor.
"""

from synk.compile.dispatch import array_funcify, array_scalar
from synk.compile.emit import emit
from synk.compile.graphs.serialize import dumps, loads
from synk.compile.graphs.substitute import substitute
from synk.compile.linker import EITHER, ArrayLinker, array_mode
from synk.compile.observe.debug import Debug, DebugError, debug_mode
from synk.compile.observe.profile import Profile
from synk.compile.programs.program import Program

__all__ = [
    "EITHER",
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
