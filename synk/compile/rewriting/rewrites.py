"""The rewrites that a graph goes through before it is compiled: PyTensor's, chosen, and those that it lacks.

array_query -> PyTensor's rewrites, without `UNWANTED`; fusion (`synk.compile.programs.elementwise.fusion`)
            -> KeepLines       the user's lines follow replacements
            -> SuperviseQuickly, AttachShapes: what PyTensor does, in linear time
            -> AsPerformed     declared dtypes are those in which Ops compute
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.compile.aliasing import Supervisor
from pytensor.graph.features import AlreadyThere, Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.utils import InconsistencyError

from synk.compile.array_modules import array_module
from synk.compile.native.libraries import native_libraries
from synk.compile.programs.elementwise.fusion import TAG
from synk.compile.programs.graphs.minima import with_minima
from synk.compile.programs.graphs.width import TooNarrowError, as_performed
from synk.compile.rewriting import shapes_on_demand
from synk.compile.rewriting.idle_rewrites import APPLICABLE, IDLE
from synk.compile.rewriting.queries import kept_rewriter
from synk.compile.rewriting.shapes_on_demand import AttachShapes
from synk.compile.rewriting.sound_rewrites import GUARDED, SOUND
from synk.compile.rewriting.until_gradients import check_until_gradients
from synk.compile.rewriting.wrong_rewrites import LEFT_OUT

WANTED = (
    "fast_run",
    "lazy_ifelse",  # a no-op in versions that lack it
    APPLICABLE,
    SOUND,  # among them what has Scan keep only the rows that are read
)

UNWANTED = (
    "cxx_only",  # makes Ops that exist in C alone
    "fusion",  # fuses what PyTensor's C linker can compute; kernels have a rewrite of their own
    "local_careduce_fusion",
    "inplace_elemwise",  # quadratic in the size of the graph; programs do it themselves (`reuse`)
    "scan_reduce_trace_prealloc",  # asks for the virtual machine's own Scan
    *LEFT_OUT,  # give wrong numbers
    *GUARDED,  # do so for some graphs: they are guarded
    *IDLE,  # run where they may apply alone
)

NATIVE = "native_regions"  # the tag of the rewrite that `synk.compile.regions` registers


def array_query(xp: ModuleType, native: bool = False, inside: bool = False) -> RewriteDatabaseQuery:
    """Return the query for all rewrites, in-place ones included, that graphs for an array module go through.

    ``native`` adds the rewrites that make regions, if there is a C compiler. ``inside`` says that the
    rewrites are for the inner graph of an Op.
    """
    in_c = native and native_libraries() is not None
    kernels = array_module(xp).fusion
    fusion = (kernels,) if kernels else (TAG, NATIVE) if in_c else ()
    return RewriteDatabaseQuery(
        include=(*WANTED, *fusion),
        exclude=(*UNWANTED, *((shapes_on_demand.REPLACED,) if shapes_on_demand.NEEDED else ())),
        extra_rewrites=_own_rewrites(inside),
    )


@cache
def _own_rewrites(inside: bool) -> tuple[tuple[GraphRewriter, float], ...]:
    """Return rewrites of ours and their positions, the same ones for each query."""
    first = (KeepLines(), RefuseWrong(), SuperviseQuickly(), AsPerformed(inside))
    shapes = ((AttachShapes(), shapes_on_demand.POSITION),) if shapes_on_demand.NEEDED else ()
    return (*((one, -1) for one in first), *shapes)


def inner_rewriter(xp: ModuleType) -> GraphRewriter:
    """Return the rewriter for inner graphs that the outer compilation leaves alone.

    Recognition of symbolic Ops is off: it would rebuild an Op inside its own definition.
    """
    return kept_rewriter(_inner_query(xp, _native.get()))


def step_rewriter() -> GraphRewriter:
    """Return the rewriter for the step of a Scan that is written in C.

    It makes no node that works in place, and merges no product with a sum into one call of BLAS.
    """
    return kept_rewriter(_inner_query(np, native=True).excluding("inplace", "BlasOpt", NATIVE))


def _inner_query(xp: ModuleType, native: bool = False) -> RewriteDatabaseQuery:
    # PyTensor would rewrite graphs that are further inside for the default mode's linker.
    unwanted = ("symbolic_op_recognition", "compile_inner_graph")
    return array_query(xp, native, inside=True).including("minimum_compile").excluding(*unwanted)


_native = ContextVar("native", default=False)


@contextmanager
def natively(native: bool) -> Iterator[None]:
    """Within this context, make regions in the inner graphs that are compiled, or make none."""
    token = _native.set(native)
    try:
        yield
    finally:
        _native.reset(token)


class KeepLines(GraphRewriter):
    """A rewriter that only attaches a `LineKeeper`; place it first.

    Many rewrites replace a variable without copying the trace that says where it was built. The line that
    built the old variable is the one to name for the new variable, too.
    """

    def add_requirements(self, fgraph):
        fgraph.attach_feature(LineKeeper())

    def apply(self, fgraph):
        pass


class RefuseWrong(GraphRewriter):
    """A rewriter that only refuses graphs in which PyTensor has built wrong gradients; place it first."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Raise NotImplementedError for such a graph; raised by ``apply``, it would become a warning."""
        check_until_gradients(fgraph.outputs)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Change nothing."""


class LineKeeper(Feature):
    """A feature of graphs that gives a new variable without a trace that of the variable it replaces."""

    def on_attach(self, fgraph):
        # One is enough, and inner rewriters may ask again.
        if any(isinstance(feature, LineKeeper) for feature in fgraph._features):
            raise AlreadyThere()

    def on_change_input(self, fgraph, node, index, old, new, reason=None):
        if not getattr(new.tag, "trace", None):
            new.tag.trace = getattr(old.tag, "trace", [])


class SuperviseQuickly(GraphRewriter):
    """A rewriter that only puts `QuickValidation` in place of a `Supervisor`'s check; place it first."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Exchange the check of the supervisor, if the graph has one."""
        for feature in list(fgraph._features):
            if type(feature) is Supervisor:
                feature.on_validate = QuickValidation(feature.protected)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Change nothing."""


class AsPerformed(GraphRewriter):
    """A rewriter that gives Ops the dtypes in which they compute; see `as_performed`.

    The new value of a shared variable is converted to the variable's dtype. A graph ``inside`` an Op is left
    as it is if a result would get another dtype than the Op has declared. A graph in which a node cannot take
    the wider numbers is left too; then the implementation of its running sum raises an error.
    """

    def __init__(self, inside: bool = False):
        self._inside = inside

    def apply(self, fgraph: FunctionGraph) -> None:
        """Change the graph; this runs before the rewrites, which go by dtypes."""
        try:
            made = as_performed(with_minima(fgraph.outputs))
        except TooNarrowError:
            return
        old = list(fgraph.outputs)
        if self._inside and any(map(_differ, old, made)):
            return
        for k, new in enumerate(made):
            if new is not old[k]:
                self._put(fgraph, k, new)

    def _put(self, fgraph: FunctionGraph, k: int, new: Any) -> None:
        old: Any = fgraph.outputs[k]
        if k in (fgraph.update_mapping or {}) and _differ(old, new):
            new = new.astype(old.type.dtype)
        (output,) = [node for node, _ in fgraph.clients[old] if getattr(node.op, "idx", None) == k]
        fgraph.change_node_input(output, 0, new, self, import_missing=True, check=False)


def _differ(one: Any, other: Any) -> bool:
    """Tell whether two variables have different dtypes."""
    return getattr(one.type, "dtype", None) != getattr(other.type, "dtype", None)


class QuickValidation:
    """Check after a change that no node overwrites a protected input, or an output, of the graph.

    PyTensor's `Supervisor` looks for each protected variable one by one, which in a network with hundreds of
    parameters takes as long as the replacements. This finds them all in one table.
    """

    def __init__(self, protected: Any):
        self._protected = protected

    def __call__(self, fgraph: FunctionGraph) -> None:
        handler: Feature | None = getattr(fgraph, "destroy_handler", None)
        if handler is None:
            return
        roots, _, destroyers = handler.refresh_droot_impact()
        if not destroyers:
            return
        for variable in (*self._protected, *fgraph.outputs):
            if roots.get(variable) in destroyers:
                raise InconsistencyError(f"trying to destroy a protected variable: {variable}")
