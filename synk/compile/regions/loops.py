"""C text of Scan: a loop around the text of its step.

    n steps, sequences, arrays that steps read and write (traces), states, constants
        -> for each step: rows as numbers or views -> the step's nodes -> rows and states, where they belong

What a trace is `synk.compile.graphs.scan_traces` says. A trace with fewer rows than steps is used round and
round, and put in order at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan

from synk.compile.compat import plain_graph
from synk.compile.elementwise.body import Operand
from synk.compile.graphs.scan_traces import traces_of
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy, fill
from synk.compile.regions.writer import RegionWriter, type_of
from synk.compile.rewrites import step_rewriter

LONGEST = 400  # nodes of a step


class Row(NamedTuple):
    """The place of a row of an array."""

    view: str
    number: str  # of the row

    @property
    def data(self) -> str:
        """The expression of its first element."""
        return f"{self.view}.data + ({self.number}) * {self.view}.strides[0]"


class Array(NamedTuple):
    """An array that steps read and write."""

    view: str
    rows: str  # their number
    take: str = ""  # the line that takes its memory, when the first step has told ``lengths`` of a row
    lengths: str = ""

    def row(self, offset: int) -> Row:
        """Return a row of step i."""
        return Row(self.view, f"(i + {offset}) % {self.rows}")


@c_text.register(Scan)
def scan(op: Scan, node: Apply, region: RegionWriter) -> None:
    """A loop."""
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
    steps = region.let("long", region.number(node.inputs[0]))
    # Too few or too many steps are for Python to name.
    region.demand(f"{steps} >= 0")
    for sequence in sequences:
        region.demand(f"{region.view(sequence)}.shape[0] >= {steps}")
    traces = traces_of(op, node)
    outputs = node.outputs[: len(traces)]
    arrays = [_changed(region, node, start, out) for start, out in zip(initial, outputs, strict=False)]
    arrays += [_fresh(region, op, steps, n, out) for n, out in zip(lengths, outputs[n_traced:], strict=True)]
    kept = [_state(region, state) for state in states]
    done = region.let_later("long")
    stops = region.let_later("char") if info.as_while else "0"
    for array in arrays:
        region.demand(f"!{steps} || {array.rows} > 0")
    region.line(f"Watch {done}w = {{1, 1, milliseconds()}};")
    with region.block(f"for (long i = 0; i < {steps} && !{stops}; i++)", graph):
        region.line(f"if (!{done}w.left-- && !look(&{done}w)) goto interrupted;")
        inner = iter(graph.inputs)
        for sequence in sequences:
            _bind(region, next(inner), Row(region.view(sequence), "i"))
        for array, trace in zip(arrays, traces, strict=True):
            for read in trace.reads:
                _bind(region, next(inner), array.row(read))
        for state in kept:
            region.bind(next(inner), state)
        for constant in constants:
            region.same(next(inner), constant)
        results = graph.outputs[:-1] if info.as_while else [*graph.outputs]
        places = [
            (array, write) for array, trace in zip(arrays, traces, strict=True) for write in trace.writes
        ]
        first = (
            len(places) - info.n_nit_sot
        )  # of the traces that no step reads: their rows are written at once
        written = _written_at_once(region, results[first : len(places)], places[first:])
        region.write_nodes(graph.toposort())
        if info.as_while:
            ends = region.let("char", f"{region.number(graph.outputs[-1])} != 0")
        _store(region, results, places, kept, written)
        region.line(f"{done} = i + 1;")
        if info.as_while:
            region.line(f"{stops} = {ends};")
    if not region.in_block:
        region.line("come_back();")
    for array in arrays:
        if array.take:
            region.line(f"if (!{steps}) {{ {array.take} }}")
    for array, trace, out in list(zip(arrays, traces, outputs, strict=True))[info.n_mit_mot :]:
        filled = region.let("long", f"{done} ? {done} + {trace.reach} : {array.rows}")
        _in_order(region, array, out, filled, info.as_while)
    for variable, state in zip(node.outputs[len(traces) :], kept, strict=True):
        region.bind(variable, state)


@lru_cache(maxsize=64)
def step_of(op: Scan) -> FunctionGraph:
    """Return the graph of a step, rewritten, but with nothing in place."""
    graph = plain_graph(op)
    step_rewriter().rewrite(graph)
    return graph


def _changed(region: RegionWriter, node: Apply, start: Variable, out: Variable) -> Array:
    """Return an array that begins as another."""
    found = None if node.op.info.as_while else region.take_over(out, start, node)
    if found is None:
        source = region.view(start)
        shape = [f"{source}.shape[{axis}]" for axis in range(out.type.ndim)]
        found = _new(region, node.op, out, shape)
        copy(region, source, found, _operand(out))
    return Array(found, region.let("long", f"{found}.shape[0]"))


def _new(region: RegionWriter, op: Scan, out: Variable, shape: Sequence[str]) -> str:
    """Return the view of new memory: of an output's, if it is known how many rows that has."""
    if not op.info.as_while:
        return region.new(out, shape)
    ndim = out.type.ndim
    return region.scratch(ndim, out.type.dtype, region.let_array(ndim, shape), to_the_end=True)


def _fresh(region: RegionWriter, op: Scan, steps: str, length: Variable, out: Variable) -> Array:
    """Return an array of so many rows, whose lengths the first step tells where the type does not."""
    shape = [f"{steps} ? {region.number(length)} : 0", *(f"{n or 0}" for n in out.type.shape[1:])]
    if None in out.type.shape[1:]:
        found, lengths, take = region.new_later(out, shape, op.info.as_while)
        return Array(found, region.let("long", f"{found}.shape[0]"), take, lengths)
    found = _new(region, op, out, shape)
    return Array(found, region.let("long", f"{found}.shape[0]"))


def _state(region: RegionWriter, state: Variable) -> str:
    """Return the number, or the view, that holds a state from step to step."""
    ndim = getattr(state.type, "ndim", 0)
    if not ndim:
        return region.let_later(type_of(state), region.number(state))
    source = region.view(state)
    lengths = region.let_array(ndim, [f"{source}.shape[{axis}]" for axis in range(ndim)])
    own = region.scratch(ndim, state.type.dtype, lengths, to_the_end=True)
    copy(region, source, own, _operand(state))
    return own


def _operand(variable: Variable) -> Operand:
    return Operand(variable.type.dtype, (False,) * variable.type.ndim)


def _bind(region: RegionWriter, variable: Variable, row: Row) -> None:
    """Say that a step's input is a row."""
    data = region.let("char *const", row.data)
    if variable.type.ndim:
        name = region.let_view(data, f"{row.view}.shape + 1", f"{row.view}.strides + 1")
        region.bind(variable, name)
    else:
        region.bind(variable, region.let(type_of(variable), f"*({type_of(variable)} *){data}"))


def _written_at_once(
    region: RegionWriter, results: Sequence[Variable], places: Sequence[tuple[Array, int]]
) -> dict[tuple[Array, int], str]:
    """Let nodes make results where they belong; return the views of those places, once they are written."""
    written: dict[tuple[Array, int], str] = {}

    def destine(variable: Variable, place: tuple[Array, int]) -> None:
        def view(lengths: str) -> str:
            ndim = variable.type.ndim
            written[place] = _row_for(region, *place, [f"{lengths}[{axis}]" for axis in range(ndim)])
            return written[place]

        region.destine(variable, view)

    for variable, place in reversed(list(zip(results, places, strict=True))):
        if getattr(variable.type, "ndim", 0) and variable.owner is not None:
            destine(variable, place)
    return written


def _row_for(region: RegionWriter, array: Array, offset: int, lengths: Sequence[str]) -> str:
    """Return the view of a row that a step writes; the first one tells its lengths, if the type does not."""
    if array.take:
        told = (f"{array.lengths}[{axis}] = {length};" for axis, length in enumerate(lengths, start=1))
        region.line(f"if (!i) {{ {' '.join(told)} {array.take} }}")
    data = region.let("char *const", array.row(offset).data)
    return region.let_view(data, f"{array.view}.shape + 1", f"{array.view}.strides + 1")


def _store(
    region: RegionWriter,
    results: Sequence[Variable],
    places: Sequence[tuple[Array, int]],
    kept: Sequence[str],
    written: Mapping[tuple[Array, int], str],
) -> None:
    """Put the results of a step where they belong, all of them read before any other is written."""
    values: list[str] = []
    for variable in results:
        if not getattr(variable.type, "ndim", 0):
            values.append(region.let(type_of(variable), region.number(variable)))
            continue
        value = region.view(variable)
        # A row, or a state, may be written before.
        if not region.is_own(value) and value not in written.values():
            ndim = variable.type.ndim
            lengths = region.let_array(ndim, [f"{value}.shape[{axis}]" for axis in range(ndim)])
            apart = region.scratch(ndim, variable.type.dtype, lengths)
            copy(region, value, apart, _operand(variable))
            value = apart
        values.append(value)
    targets: list[Any] = [*places, *kept]
    for variable, value, target in zip(results, values, targets, strict=True):
        ndim, kind = getattr(variable.type, "ndim", 0), type_of(variable)
        if isinstance(target, tuple):
            if written.get(target) == value:
                continue
            array, offset = target
            if not ndim:
                region.line(f"*({kind} *)({array.row(offset).data}) = {value};")
                continue
            place = _row_for(region, array, offset, [f"{value}.shape[{axis}]" for axis in range(ndim)])
        elif not ndim:
            region.line(f"{target} = {value};")
            continue
        else:
            place = target
        for axis in range(ndim):
            region.demand(f"{value}.shape[{axis}] == {place}.shape[{axis}]")
        copy(region, value, place, _operand(variable))


def _in_order(region: RegionWriter, array: Array, out: Variable, filled: str, as_while: bool) -> None:
    """Put the rows of a trace in the order of their steps; those that no step has reached are 0, or none."""
    view, n, ndim = array.view, array.rows, out.type.ndim
    others = [f"{view}.shape[{axis}]" for axis in range(1, ndim)]
    region.line(f"if ({n} > 1 && {n} < {filled}) {{")
    turned = region.scratch(ndim, out.type.dtype, region.let_array(ndim, [n, *others]))
    copy(region, view, turned, _operand(out))
    first = region.let("long", f"{filled} % {n}")
    for start, count, at in ((first, f"{n} - {first}", "0"), ("0", first, f"{n} - {first}")):
        part = region.let_array(ndim, [count, *others])
        source = region.let_view(
            f"({turned}.data + ({start}) * {turned}.strides[0])", part, f"{turned}.strides"
        )
        target = region.let_view(f"({view}.data + ({at}) * {view}.strides[0])", part, f"{view}.strides")
        copy(region, source, target, _operand(out))
    region.line("}")
    if as_while:
        lengths = region.let_array(ndim, [f"{filled} < {n} ? {filled} : {n}", *others])
        region.bind(out, region.let_view(f"{view}.data", lengths, f"{view}.strides"))
        return
    region.line(f"if ({filled} < {n}) {{")
    lengths = region.let_array(ndim, [f"{n} - {filled}", *others])
    left = region.let_view(f"({view}.data + {filled} * {view}.strides[0])", lengths, f"{view}.strides")
    fill(region, left, _operand(out), "0")
    region.line("}")
