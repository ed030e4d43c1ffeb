"""C text of Scan: a loop around the text of its step.

    n steps, sequences, arrays that steps read and write (traces), states, constants
        -> for each step: rows as numbers or views -> the step's nodes -> rows and states, where they belong

Traces are described in `synk.compile.programs.graphs.scan_traces`. A trace with fewer rows than steps is used
as a ring: a step overwrites the oldest row, and after the loop the rows are put in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType

from synk.compile.compat import plain_graph
from synk.compile.programs.graphs.scan_traces import traces_of
from synk.compile.regions.c_texts import NoText, c_text
from synk.compile.regions.lines import Text
from synk.compile.regions.memory import OwnMemory
from synk.compile.regions.products import as_blas_reads
from synk.compile.regions.region_writer import RegionWriter
from synk.compile.regions.variables import type_of
from synk.compile.regions.views import View
from synk.compile.regions.walks import copy, fill
from synk.compile.rewriting.rewrites import step_rewriter

LONGEST = 400  # nodes of a step


class Array(NamedTuple):
    """The array of a trace, as names in the text."""

    view: View
    rows: str  # their number
    take: str = ""  # the line that takes its memory in the first step, which sets ``lengths`` of a row
    lengths: str = ""

    def row(self, offset: int) -> str:
        """Return C for the number of the row that is ``offset`` rows behind that of step i."""
        return f"(i + {offset}) % {self.rows}"


@c_text.register(Scan)
def scan(op: Scan, node: Apply, region: RegionWriter) -> None:
    """Write the loop of a Scan."""
    info = op.info
    graph = step_of(op).clone()  # its variables are known to one region, once
    if len(graph.apply_nodes) > LONGEST:
        raise NoText("a step of many nodes")
    n_traced = info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
    given = iter(node.inputs[1:])
    sequences, initial, states, lengths = (
        [next(given) for _ in range(n)]
        for n in (info.n_seqs, n_traced, info.n_untraced_sit_sot, info.n_nit_sot)
    )
    constants = list(given)
    steps = region.text.let("long", region.variables.number(node.inputs[0]))
    # With too few or too many steps the region gives up, and Python raises the error.
    region.text.demand(f"{steps} >= 0")
    for sequence in sequences:
        region.text.demand(f"{region.variables.view(sequence)}.shape[0] >= {steps}")
    traces = traces_of(op)
    outputs = node.outputs[: len(traces)]
    arrays = []
    for k, (start, out, trace) in enumerate(zip(initial, outputs, traces, strict=False)):
        # Steps read no other rows than the first and those that steps before have written.
        begins = "" if k < info.n_mit_mot else f"{steps} ? {trace.reach} : "
        arrays.append(_changed(region, node, start, out, begins))
    arrays += [_fresh(region, op, steps, n, out) for n, out in zip(lengths, outputs[n_traced:], strict=True)]
    kept = [_state(region, node, state) for state in states]
    for variable, constant in zip(op.inner_non_seqs(graph.inputs), constants, strict=True):
        _constant(region, graph, variable, constant)
    done = region.text.declare_variable("long")
    stops = region.text.declare_variable("char") if info.as_while else "0"
    for array in arrays:
        region.text.demand(f"!{steps} || {array.rows} > 0")
    with region.block(f"{steps} && !{stops}", graph):
        inner = iter(graph.inputs)
        for sequence in sequences:
            region.variables.bind_part(next(inner), region.variables.view(sequence), "i")
        for array, trace in zip(arrays, traces, strict=True):
            for read in trace.reads:
                region.variables.bind_part(next(inner), array.view, array.row(read))
        for state in kept:
            region.variables.bind(next(inner), state)
        results = graph.outputs[:-1] if info.as_while else [*graph.outputs]
        places = [
            (array, write) for array, trace in zip(arrays, traces, strict=True) for write in trace.writes
        ]
        # Rows of traces that no step reads can be written directly by the nodes that compute them.
        first = len(places) - info.n_nit_sot
        written = _written_at_once(region, results[first : len(places)], places[first:])
        region.write_nodes(graph.toposort())
        if info.as_while:
            ends = region.text.let("char", f"{region.variables.number(graph.outputs[-1])} != 0")
        _store(region, results, places, kept, written)
        region.text.line(f"{done} = i + 1;")
        if info.as_while:
            region.text.line(f"{stops} = {ends};")
    for array in arrays:
        if array.take:
            region.text.line(f"if (!{steps}) {{ {array.take} }}")
    for array, trace, out in list(zip(arrays, traces, outputs, strict=True))[info.n_mit_mot :]:
        filled = region.text.let("long", f"{done} ? {done} + {trace.reach} : {array.rows}")
        _in_order(region, array, out, filled, info.as_while)
    for variable, state in zip(node.outputs[len(traces) :], kept, strict=True):
        region.variables.bind(variable, state)


def step_of(op: Scan) -> FunctionGraph:
    """Return the graph of a Scan's step, rewritten, with no node that works in place."""
    if op not in _steps:
        graph = plain_graph(op)
        step_rewriter().rewrite(graph)
        _steps[op] = graph
    return _steps[op]


_steps: WeakKeyDictionary[Scan, FunctionGraph] = WeakKeyDictionary()  # so that each is rewritten once


def _changed(region: RegionWriter, node: Apply, start: Variable, out: Variable, begins: str) -> Array:
    """Return the array of a trace whose first rows are those of ``start``, in its memory or in a copy.

    ``begins`` is C in front of the number of rows of ``start``; by it, ``n ? 2 : ``, fewer rows may be
    copied.
    """
    found = None if node.op.info.as_while else region.variables.take_over(out, start, node)
    if found is None:
        source = region.variables.view(start)
        found = _new(region, node.op, out, source.shape)
        count = region.text.let("long", f"{begins}{source.shape[0]}")
        region.text.demand(f"{count} <= {source.shape[0]}")
        copy(region.text, *(_rows(region.memory, view, "0", count) for view in (source, found)))
    return Array(found, region.text.let("long", found.shape[0]))


def _new(region: RegionWriter, op: Scan, out: Variable, shape: Sequence[str]) -> View:
    """Return the view of new memory for a trace: the output's, unless ``until`` may make that shorter."""
    if not op.info.as_while:
        return region.variables.new(out, shape)
    return region.memory.scratch(out.type.dtype, shape)


def _fresh(region: RegionWriter, op: Scan, steps: str, length: Variable, out: Variable) -> Array:
    """Return the array of a trace without initial rows.

    If the type does not tell the lengths of a row, the memory is taken in the first step, which does.
    """
    shape = [f"{steps} ? {region.variables.number(length)} : 0", *(f"{n or 0}" for n in out.type.shape[1:])]
    lengths = take = ""
    if None in out.type.shape[1:]:
        found, lengths, take = region.memory.new_later(out.type.dtype, shape)
    else:
        found = _new(region, op, out, shape)
    return Array(found, region.text.let("long", found.shape[0]), take, lengths)


def _constant(region: RegionWriter, graph: FunctionGraph, variable: Variable, source: Variable) -> None:
    """Note a variable of the step's graph that is the same in all steps.

    A matrix by which steps multiply is laid out by rows before the loop. BLAS would transpose any other
    matrix in each step, which takes half as long as the product of a few rows.
    """
    factors = [node.inputs for node in graph.apply_nodes if isinstance(node.op, Dot)]
    if any(right is variable and left.type.ndim == right.type.ndim == 2 for left, right in factors):
        region.variables.bind(variable, as_blas_reads(region, region.variables.view(source), "== 'N'"))
    else:
        region.variables.same(variable, source)


def _state(region: RegionWriter, node: Apply, state: Variable) -> str | View:
    """Return the name that holds a state from step to step: a number, a view or a generator's bits."""
    if isinstance(state.type, RandomType):
        return region.variables.generator(state, node)
    if not getattr(state.type, "ndim", 0):
        return region.text.declare_variable(type_of(state), region.variables.number(state))
    return _copied(region, region.variables.view(state))


def _copied(region: RegionWriter, source: View) -> View:
    """Add lines that copy a view to the region's own memory; return the view of the copy."""
    own = region.memory.scratch(source.dtype, source.shape)
    copy(region.text, source, own)
    return own


def _written_at_once(
    region: RegionWriter, results: Sequence[Variable], places: Sequence[tuple[Array, int]]
) -> dict[tuple[Array, int], View]:
    """Let nodes of a step write their results directly into the rows of traces.

    Returns a table from places to the views of these rows, to which an entry is added as each node is
    written.
    """
    written: dict[tuple[Array, int], View] = {}

    def row(place: tuple[Array, int], lengths: str) -> View:
        array, offset = place
        n = array.view.ndim - 1
        written[place] = _row_for(region.text, array, offset, [f"{lengths}[{axis}]" for axis in range(n)])
        return written[place]

    for variable, place in reversed(list(zip(results, places, strict=True))):
        if getattr(variable.type, "ndim", 0) and variable.owner is not None:
            region.variables.destine(variable, partial(row, place))
    return written


def _row_for(text: Text, array: Array, offset: int, lengths: Sequence[str]) -> View:
    """Return the view of the row that a step writes.

    If the array has no memory yet, the first step takes it, for rows with the given lengths.
    """
    if array.take:
        told = (f"{array.lengths}[{axis}] = {length};" for axis, length in enumerate(lengths, start=1))
        text.line(f"if (!i) {{ {' '.join(told)} {array.take} }}")
    return text.declare_subview(array.view, array.row(offset))


def _store(
    region: RegionWriter,
    results: Sequence[Variable],
    places: Sequence[tuple[Array, int]],
    kept: Sequence[str | View],
    written: Mapping[tuple[Array, int], View],
) -> None:
    """Copy a step's results to their rows and states; all are read before any of these is overwritten."""
    for variable in results:
        if isinstance(variable.type, RandomType):
            continue
        if not getattr(variable.type, "ndim", 0):
            region.variables.bind_number(variable, region.variables.number(variable))
            continue
        value = region.variables.view(variable)
        # It may be a view of a row or a state that is overwritten before this result is stored.
        if not region.memory.is_own(value) and value not in written.values():
            region.variables.bind(variable, _copied(region, value))
    for variable, target in zip(results, [*places, *kept], strict=True):
        if isinstance(variable.type, RandomType):
            if region.variables.number(variable) != target:
                raise NoText("a generator that takes another one's place")
        elif isinstance(target, str):
            region.text.line(f"{target} = {region.variables.number(variable)};")
        elif isinstance(target, View):
            region.variables.store(variable, target)
        elif not getattr(variable.type, "ndim", 0):
            region.variables.store(
                variable, region.text.declare_subview(target[0].view, target[0].row(target[1]))
            )
        elif target not in written or written[target] != region.variables.view(variable):
            region.variables.store(
                variable, _row_for(region.text, *target, region.variables.view(variable).shape)
            )


def _rows(memory: OwnMemory, view: View, start: str, count: str) -> View:
    """Return the view of ``count`` rows from ``start`` on."""
    return memory.subview(view, view.at(start), [count, *view.shape[1:]], view.strides)


def _in_order(region: RegionWriter, array: Array, out: Variable, filled: str, as_while: bool) -> None:
    """Add lines that put the rows of a trace in the order of their steps.

    ``filled`` is the number of rows that have been written in all. Rows that no step has written are cut off
    if ``until`` may have ended the loop, and set to 0 otherwise.
    """
    view, n, rows = array.view, array.rows, partial(_rows, region.memory)
    region.text.line(f"if ({n} > 1 && {n} < {filled}) {{")
    turned = _copied(region, view)
    first = region.text.let("long", f"{filled} % {n}")
    for start, count, at in ((first, f"{n} - {first}", "0"), ("0", first, f"{n} - {first}")):
        copy(region.text, rows(turned, start, count), rows(view, at, count))
    region.text.line("}")
    if as_while:
        region.variables.bind(out, rows(view, "0", f"{filled} < {n} ? {filled} : {n}"))
        return
    region.variables.bind(out, view)
    region.text.line(f"if ({filled} < {n}) {{")
    fill(region.text, rows(view, filled, f"{n} - {filled}"))
    region.text.line("}")
