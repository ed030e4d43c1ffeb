"""Find where the values of a Scan lie, and which of them a step may overwrite.

Pure decisions about graphs, made once when a Scan is compiled.

A *trace* is an array with a row per step, after ``reach`` rows of initial values. Step i reads row
``i + offset`` for each offset in ``reads`` and writes row ``i + offset`` for each in ``writes``. An array
with fewer rows than the run needs is used round and round: all row numbers are modulo its length.
An *untraced* state has no array; each step takes what the step before returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from pytensor.compile.aliasing import alias_root
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scan.op import Scan


@dataclass(frozen=True)
class Trace:
    """The rows of one array that a step reads and writes."""

    reach: int  # rows of initial values
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    length: int | None  # rows, if known when compiled

    def overwrites(self, read: int, write: int) -> bool:
        """Tell whether a step's write surely replaces the row that it has read."""
        gap = write - read
        return gap == 0 or bool(self.length and gap % self.length == 0)


@dataclass(frozen=True)
class TraceMemory:
    """The places for the results of a step, and the memory that they may be written over."""

    traces: Sequence[Trace]
    owned: Sequence[bool]  # outputs that may overwrite the initial values given
    replaced: Sequence[int | None]  # of each row written: see `replaced_rows`
    copied: Sequence[int]  # results to copy before any row is written
    changed: Sequence[bool]  # untraced states to copy before the first step, which overwrites them


def plan_memory(op: Scan, graph: FunctionGraph, traces: Sequence[Trace]) -> TraceMemory:
    """Decide what becomes of the results of the step ``graph``."""
    states = op.inner_untraced_sit_sot(graph.inputs)
    owned = [k in op.destroy_map for k in range(len(traces) + len(states))]
    replaced = replaced_rows(graph, op.info.n_seqs, traces)
    rows = rows_to_copy(graph, op.info.n_seqs, traces, replaced)
    kept = states_to_copy(states, op.inner_untraced_sit_sot_outs(graph.outputs))
    destroyed = destroyed_inputs(graph)
    changed = [
        state in destroyed and not owns for state, owns in zip(states, owned[len(traces) :], strict=True)
    ]
    return TraceMemory(traces, owned, replaced, [*rows, *[len(replaced) + k for k in kept]], changed)


def traces_of(op: Scan, node: Apply) -> list[Trace]:
    """Return the traces in the order of the Scan's outputs: mit-mot, mit-sot, sit-sot, nit-sot."""
    info = op.info
    single = ((0,),)
    reads = info.mit_mot_in_slices + info.mit_sot_in_slices + info.sit_sot_in_slices
    writes = info.mit_mot_out_slices + single * (info.n_mit_sot + info.n_sit_sot)
    arrays = node.inputs[1 + info.n_seqs :]
    traces = [
        _trace(taps_in, taps_out, array.type.shape[0])
        for taps_in, taps_out, array in zip(reads, writes, arrays, strict=False)
    ]
    return traces + [Trace(0, (), (0,), None)] * info.n_nit_sot


def _trace(taps_in: Sequence[int], taps_out: Sequence[int], length: int | None) -> Trace:
    """Count from the oldest row instead of from the row of the step."""
    reach = -min(0, *taps_in)
    return Trace(reach, tuple(t + reach for t in taps_in), tuple(t + reach for t in taps_out), length)


def disposable(op: Scan, traces: Sequence[Trace]) -> set[int]:
    """Return the positions of the step's inputs that it may destroy.

    These are the rows that the step itself replaces, and the untraced states.
    """
    rows = [
        any(traces[k].overwrites(read, write) for write in traces[k].writes) for k, read in _reads(traces)
    ]
    allowed = [False] * op.info.n_seqs + rows + [True] * op.info.n_untraced_sit_sot
    return {position for position, allows in enumerate(allowed) if allows}


def destroyed_inputs(graph: FunctionGraph) -> set[Variable]:
    """Return the inputs of ``graph`` that its nodes destroy."""
    roots = {
        alias_root(node.inputs[position])
        for node in graph.apply_nodes
        for position in chain.from_iterable(node.op.destroy_map.values())
    }
    return roots.intersection(graph.inputs)


def replaced_rows(graph: FunctionGraph, n_seqs: int, traces: Sequence[Trace]) -> list[int | None]:
    """For each result that is written to a trace: the position of the input whose memory it has taken over.

    That is None unless the row to write is the very row that the step has read there and changed in
    place; such a result is where it belongs already.
    """
    row_at = {
        graph.inputs[position]: (position, k, read)
        for position, (k, read) in enumerate(_reads(traces), n_seqs)
    }
    targets = [(k, write) for k, trace in enumerate(traces) for write in trace.writes]
    rows = []
    for result, (k, write) in zip(graph.outputs, targets, strict=False):
        position, owner, read = row_at.get(_memory_of(result), (None, None, 0))
        rows.append(position if owner == k and traces[k].overwrites(read, write) else None)
    return rows


def rows_to_copy(
    graph: FunctionGraph, n_seqs: int, traces: Sequence[Trace], replaced: Sequence[int | None]
) -> list[int]:
    """Return the positions of the results to copy before any is written to a trace.

    They share memory with a row of a trace, and another result may be written to that row first.
    """
    rows = set(graph.inputs[n_seqs : n_seqs + len(_reads(traces))])
    return [
        k for k, position in enumerate(replaced) if position is None and alias_root(graph.outputs[k]) in rows
    ]


def states_to_copy(states: Sequence[Variable], results: Sequence[Variable]) -> list[int]:
    """Return the positions of the untraced states that must be copied from step to step.

    A result is kept as it is if the step made it, or made it of the state itself, and no other state
    keeps it too.
    """
    taken: set[Variable] = set()
    copied = []
    for k, (state, result) in enumerate(zip(states, results, strict=True)):
        root = alias_root(result)
        if root in taken or (root.owner is None and root is not state):
            copied.append(k)
        else:
            taken.add(root)
    return copied


def _reads(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """The rows that a step reads, in the order of its inputs: number of the trace, offset."""
    return [(k, read) for k, trace in enumerate(traces) for read in trace.reads]


def _memory_of(variable: Variable) -> Variable:
    """Return the variable whose memory, all of it, ``variable`` has taken over."""
    while variable.owner is not None:
        destroyed = variable.owner.op.destroy_map.get(variable.owner.outputs.index(variable))
        if not destroyed:
            break
        variable = variable.owner.inputs[destroyed[0]]
    return variable
