"""Which of PyTensor's graph rewrites suit array programs."""

from functools import cache
from types import ModuleType

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from synk.compile.elementwise import kernels_for
from synk.compile.elementwise.fusion import TAGS, register_fusion
from synk.compile.passes.place import wanted_on_host
from synk.compile.rewriting import shapes
from synk.compile.rewriting.keep import KeepLines
from synk.compile.rewriting.supervisor import SuperviseQuickly

WANTED = (
    "fast_run",
    "lazy_ifelse",  # a no-op in versions that lack it
    "scan_save_mem_no_prealloc",  # else Scan keeps every row of what is read at the end only
)

ELEMWISE_IN_PLACE = "inplace_elemwise"

UNWANTED = (
    "cxx_only",  # makes Ops that exist in C alone
    "fusion",  # fuses what PyTensor's C linker can compute; kernels have a rewrite of their own
    "local_careduce_fusion",
    ELEMWISE_IN_PLACE,  # quadratic in the size of the graph; programs do it themselves (`reuse`)
    "scan_reduce_trace_prealloc",  # asks for the virtual machine's own Scan
)

register_fusion(wanted_on_host)


def array_query(xp: ModuleType = np) -> RewriteDatabaseQuery:
    """Return the query that selects the rewrites: in place too, and fusion where ``xp`` has kernels."""
    kernels = kernels_for(xp)
    fusion = () if kernels is None else (TAGS[kernels.dialect.name],)
    near = shapes.NEEDED
    return RewriteDatabaseQuery(
        include=(*WANTED, *fusion),
        exclude=(*UNWANTED, *((shapes.REPLACED,) if near else ())),
        extra_rewrites=[
            (KeepLines(), -1),
            (SuperviseQuickly(), -1),
            *([(shapes.NearShapes(), shapes.POSITION)] if near else []),
        ],
    )


@cache
def inner_rewriter(xp: ModuleType = np) -> GraphRewriter:
    """Return the rewriter for inner graphs that the outer compilation leaves alone.

    Recognition of symbolic Ops is off: it would rebuild an Op inside its own definition.
    """
    return optdb.query(array_query(xp).including("minimum_compile").excluding("symbolic_op_recognition"))
