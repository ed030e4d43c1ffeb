"""Compile PyTensor graphs to array programs, and carry graphs between processes.

The way of a graph through ``pytensor.function(..., mode=array_mode())``; names are modules and folders here:

    linker              pairs itself with rewrites, and runs the program when the function is called
    rewriting/          PyTensor's rewrites and ours, without ``wrong_rewrites``
    programs/           ``emit`` has the passes decide about the program, one by one, and writes it down:
      elementwise/        joins elementwise Ops, and writes their kernels
      passes/             decisions; ``plan`` has the list of them
      text/               program_writer writes the lines; program is what they become, and says whom to blame
                          when one fails; transfer and buffers are what it calls beside implementations
      graphs/             takes graphs to other processes, replaces variables, knows whose lines built them
    tables              what the passes ask about an Op: its entries, all of which may be added to
    dispatch/           entries for PyTensor's Ops, one family a file
    regions/, native/   nodes that become one C function; compiled libraries

An observer may stand around every node (observe/): ``debug`` asks ``checks``; ``profile`` makes a ``report``.
``compat`` holds every difference between versions of PyTensor, ``host_call`` runs what has no entry.
"""

from synk.compile.dispatch import array_funcify, array_scalar
from synk.compile.linker import EITHER, ArrayLinker, array_mode
from synk.compile.observe.debug import Debug, DebugError, debug_mode
from synk.compile.observe.profile import Profile
from synk.compile.observe.source import source_of
from synk.compile.programs.emit import emit
from synk.compile.programs.graphs.serialize import dumps, loads
from synk.compile.programs.graphs.substitute import substitute
from synk.compile.programs.text.program import Program
from synk.compile.rewriting.wrong_rewrites import LEFT_OUT, without_wrong

__all__ = [
    "EITHER",
    "LEFT_OUT",
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
    "source_of",
    "substitute",
    "without_wrong",
]
