"""C text of Scan: a loop around the text of its step.

    n steps, sequences, arrays that steps read and write (traces), states, constants
        -> for each step: rows as numbers or views -> the step's nodes -> rows and states, where they belong

What a trace is `synk.compile.graphs.scan_traces` says. A trace with fewer rows than steps is used round and
round, and put in order at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan

from synk.compile.compat import plain_graph
from synk.compile.elementwise.body import Operand
from synk.compile.graphs.scan_traces import Trace, traces_of
from synk.compile.regions.table import NoText, c_text
from synk.compile.regions.walks import copy, fill
from synk.compile.regions.writer import RegionWriter, type_of
from synk.compile.rewrites import step_rewriter

LONGEST = 400  # nodes of a step
BREATHE = 64  # steps, after which other threads and signals have their turn


class Row(NamedTuple):
    """The place of a row of an array."""

    view: str
    number: str  # of the row

    @property
    def data(self) -> str:
        """The expression of its first element."""
        return f"{self.view}.data + ({self.number}) * {self.view}.strides[0]"


@c_text.register(Scan)
def scan(op: Scan, node: Apply, region: RegionWriter) -> None:
    """A loop."""
    info = op.info
    if info.as_while:
        raise NoText("a loop that ends when it likes")
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
    # No steps, or too many, are for Python to handle or to name.
    region.demand(f"{steps} > 0")
    for sequence in sequences:
        region.demand(f"{region.view(sequence)}.shape[0] >= {steps}")
    traces = traces_of(op, node)
    outputs = node.outputs[: len(traces)]
    arrays = [_changed(region, node, start, out) for start, out in zip(initial, outputs, strict=False)]
    arrays += [_fresh(region, n, out) for n, out in zip(lengths, outputs[n_traced:], strict=True)]
    kept = [_state(region, state) for state in states]
    rows = [region.let("long", f"{array}.shape[0]") for array in arrays]
    for n in rows:
        region.demand(f"{n} > 0")
    with region.block(f"for (long i = 0; i < {steps}; i++)", graph):
        region.line(f"if (i % {BREATHE} == {BREATHE - 1} && !breathe()) goto interrupted;")
        inner = iter(graph.inputs)
        for sequence in sequences:
            _bind(region, next(inner), Row(region.view(sequence), "i"))
        for array, trace, n in zip(arrays, traces, rows, strict=True):
            for read in trace.reads:
                _bind(region, next(inner), _row(array, trace, read, n))
        for state in kept:
            region.bind(next(inner), state)
        for constant in constants:
            region.alias(next(inner), constant)
        region.write_nodes(graph.toposort())
        results = [*graph.outputs]
        places = [
            _row(array, trace, write, n)
            for array, trace, n in zip(arrays, traces, rows, strict=True)
            for write in trace.writes
        ]
        _store(region, results, places, kept)
    for array, trace, out, n in list(zip(arrays, traces, outputs, rows, strict=True))[info.n_mit_mot :]:
        _in_order(region, array, out, n, f"({steps} + {trace.reach})")
    for variable, state in zip(node.outputs[len(traces) :], kept, strict=True):
        region.bind(variable, state)


@lru_cache(maxsize=64)
def step_of(op: Scan) -> FunctionGraph:
    """Return the graph of a step, rewritten, but with nothing in place."""
    graph = plain_graph(op)
    step_rewriter().rewrite(graph)
    return graph


def _changed(region: RegionWriter, node: Apply, start: Variable, out: Variable) -> str:
    """Return the view of an array that begins as another."""
    found = region.take_over(out, start, node)
    if found is None:
        source = region.view(start)
        found = region.new(out, [f"{source}.shape[{axis}]" for axis in range(out.type.ndim)])
        copy(region, source, found, _operand(out))
    return found


def _fresh(region: RegionWriter, length: Variable, out: Variable) -> str:
    """Return the view of an array of so many rows of a shape that is known."""
    row = out.type.shape[1:]
    if None in row:
        raise NoText("rows of a length that only the first one tells")
    return region.new(out, [region.number(length), *map(str, row)])


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


def _row(array: str, trace: Trace, offset: int, n: str) -> Row:
    return Row(array, f"(i + {offset}) % {n}")


def _bind(region: RegionWriter, variable: Variable, row: Row) -> None:
    """Say that a step's input is a row."""
    data = region.let("char *const", row.data)
    if variable.type.ndim:
        name = region.let_view(data, f"{row.view}.shape + 1", f"{row.view}.strides + 1")
        region.bind(variable, name)
    else:
        region.bind(variable, region.let(type_of(variable), f"*({type_of(variable)} *){data}"))


def _store(
    region: RegionWriter, results: Sequence[Variable], places: Sequence[Row], kept: Sequence[str]
) -> None:
    """Put the results of a step where they belong, all of them read before any is written."""
    values: list[str] = []
    for variable in results:
        if not getattr(variable.type, "ndim", 0):
            values.append(region.let(type_of(variable), region.number(variable)))
            continue
        value = region.view(variable)
        if not region.is_own(value):  # a row, or a state, that may be written before
            ndim = variable.type.ndim
            lengths = region.let_array(ndim, [f"{value}.shape[{axis}]" for axis in range(ndim)])
            apart = region.scratch(ndim, variable.type.dtype, lengths)
            copy(region, value, apart, _operand(variable))
            value = apart
        values.append(value)
    targets: list[Any] = [*places, *kept]
    for variable, value, target in zip(results, values, targets, strict=True):
        ndim, kind = getattr(variable.type, "ndim", 0), type_of(variable)
        if isinstance(target, Row):
            data = region.let("char *const", target.data)
            if not ndim:
                region.line(f"*({kind} *){data} = {value};")
                continue
            place = region.let_view(data, f"{target.view}.shape + 1", f"{target.view}.strides + 1")
        elif not ndim:
            region.line(f"{target} = {value};")
            continue
        else:
            place = target
        for axis in range(ndim):
            region.demand(f"{value}.shape[{axis}] == {place}.shape[{axis}]")
        copy(region, value, place, _operand(variable))


def _in_order(region: RegionWriter, array: str, out: Variable, n: str, filled: str) -> None:
    """Put the rows of a trace in the order of their steps; those that no step has reached are 0."""
    ndim, dtype = out.type.ndim, out.type.dtype
    region.line(f"if ({n} > 1 && {n} < {filled}) {{")
    lengths = region.let_array(ndim, [f"{array}.shape[{axis}]" for axis in range(ndim)])
    turned = region.scratch(ndim, dtype, lengths)
    copy(region, array, turned, _operand(out))
    first = region.let("long", f"{filled} % {n}")
    for start, count, at in ((first, f"{n} - {first}", "0"), ("0", first, f"{n} - {first}")):
        part = region.let_array(ndim, [count, *(f"{array}.shape[{axis}]" for axis in range(1, ndim))])
        source = region.let_view(
            f"({turned}.data + ({start}) * {turned}.strides[0])", part, f"{turned}.strides"
        )
        target = region.let_view(f"({array}.data + ({at}) * {array}.strides[0])", part, f"{array}.strides")
        copy(region, source, target, _operand(out))
    region.line("}")
    region.line(f"if ({filled} < {n}) {{")
    rest = [f"{n} - {filled}", *(f"{array}.shape[{axis}]" for axis in range(1, ndim))]
    lengths = region.let_array(ndim, rest)
    left = region.let_view(f"({array}.data + {filled} * {array}.strides[0])", lengths, f"{array}.strides")
    fill(region, left, _operand(out), "0")
    region.line("}")
