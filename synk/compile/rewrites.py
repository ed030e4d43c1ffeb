"""Which of PyTensor's graph rewrites suit array programs.

Imports PyTensor only; the linker, the mode and the inner graphs of Ops share this choice.
"""

from functools import cache

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

WANTED = ("fast_run", "lazy_ifelse")  # lazy_ifelse: a no-op in versions that lack it

UNWANTED = (
    "cxx_only",  # makes Ops that exist in C alone
    "fusion",  # Composite has no array form; fused kernels are a backend of their own
    "local_careduce_fusion",
    "scan_reduce_trace_prealloc",  # asks for the virtual machine's own Scan
    # Factorisation Ops without an array form; solving afresh is exact.
    "reuse_lu_decomposition_multiple_solves",
    "scan_split_non_sequence_lu_decomposition_solve",
    "reuse_decomposition_multiple_solves",
    "scan_split_non_sequence_decomposition_and_solve",
)


def array_query() -> RewriteDatabaseQuery:
    """Return the query that selects the rewrites; in-place ones are among them."""
    return RewriteDatabaseQuery(include=WANTED, exclude=UNWANTED)


@cache
def inner_rewriter() -> GraphRewriter:
    """Return the rewriter for inner graphs that the outer compilation leaves alone.

    Recognition of symbolic Ops is off: it would rebuild an Op inside its own definition.
    """
    return optdb.query(array_query().including("minimum_compile").excluding("symbolic_op_recognition"))
