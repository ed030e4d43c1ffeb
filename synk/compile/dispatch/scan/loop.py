"""Scan: a program that runs once a step, in a Python loop.

    sequences[i], rows of traces, untraced states, constants
        -> step -> rows of traces, untraced states[, whether to stop]

`traces` says what a trace is and which values a step may overwrite.
"""

from functools import cache
from itertools import accumulate, pairwise

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scan.op import Scan

from synk.compile.compat import step_graph
from synk.compile.dispatch.graph import copy_value
from synk.compile.emit import emit
from synk.compile.graphs.scan_traces import TraceMemory, disposable, plan_memory, traces_of
from synk.compile.rewrites import ELEMWISE_IN_PLACE, UNWANTED, inner_rewriter
from synk.compile.tables import array_funcify


@array_funcify.register(Scan)
def scan(op, node, xp):
    """A loop over the rows of arrays."""
    traces = traces_of(op, node)
    graph = step_graph(op, inner_rewriter(xp), _inplace_rewriter(), disposable(op, traces))
    # Python reads whether to stop.
    fetched = [len(graph.outputs) - 1] if op.info.as_while else []
    return Loop(op, node, plan_memory(op, graph, traces), emit(graph, xp, fetched=fetched), xp)


@cache
def _inplace_rewriter() -> GraphRewriter:
    """Return the rewriter that lets a step work in place, elementwise nodes too: they may take its state."""
    unwanted = [tag for tag in UNWANTED if tag != ELEMWISE_IN_PLACE]
    return optdb.query(RewriteDatabaseQuery(include=("inplace",), exclude=unwanted))


class Loop:
    """Run a step again and again: ``loop(n_steps, *sequences, *initial, *states, *lengths, *constants)``.

    ``initial`` are the traces that start with initial values, ``lengths`` the numbers of rows of the others.

    Parameters
    ----------
    op, node : Scan and its Apply
    memory : TraceMemory
        What to do with the results of a step.
    step : Program
        The inner graph of the Op.
    xp : module
    """

    def __init__(self, op, node, memory: TraceMemory, step, xp):
        info, n_states = op.info, op.info.n_untraced_sit_sot
        n_initial, n_written = len(memory.traces) - info.n_nit_sot, len(memory.replaced)
        self.host_nodes = step.host_nodes
        self.memory, self.step, self.xp = memory, step, xp
        self.as_while, self.n_mit_mot = info.as_while, info.n_mit_mot
        self.parts = _slices(info.n_seqs, n_initial, n_states, info.n_nit_sot, info.n_non_seqs)
        self.made = slice(n_written - info.n_nit_sot, n_written)  # results for traces without initial values
        self.kept = slice(n_written, n_written + n_states)  # results that are untraced states
        self.new = [
            (variable.type.dtype, [length or 0 for length in variable.type.shape[1:]])
            for variable in op.outer_nitsot_outs(node.outputs)
        ]

    def __call__(self, n_steps, *inputs):
        n_steps = int(n_steps)
        sequences, initial, states, lengths, constants = [inputs[part] for part in self.parts]
        check_steps(n_steps, sequences)
        memory = self.memory
        arrays = [x if owned else self.xp.array(x) for x, owned in zip(initial, memory.owned, strict=False)]
        if n_steps == 0:
            arrays += [self.xp.empty((0, *shape), dtype) for dtype, shape in self.new]
        else:
            pairs = zip(states, memory.changed, strict=True)
            states = [copy_value(state) if changed else state for state, changed in pairs]
            done, states = self._run(n_steps, sequences, arrays, states, lengths, constants)
            ordered = slice(self.n_mit_mot, None)  # the others have a row per step
            pairs = zip(arrays[ordered], memory.traces[ordered], strict=True)
            arrays[ordered] = [self._in_order(array, done + trace.reach) for array, trace in pairs]
        results = *arrays, *states
        return results[0] if len(results) == 1 else results

    def _run(self, n_steps, sequences, arrays, states, lengths, constants):
        """Take up to ``n_steps`` steps; return how many, and the last states. New traces join ``arrays``."""
        reads = [
            (array, offset, len(array))
            for array, trace in zip(arrays, self.memory.traces, strict=False)
            for offset in trace.reads
        ]
        writes = []
        for i in range(n_steps):
            rows = [sequence[i] for sequence in sequences]
            rows += [array[(i + offset) % length] for array, offset, length in reads]
            results = self._results(rows, states, constants)
            if i == 0:
                arrays += self._new_arrays(lengths, results[self.made])
                writes = self._writes(arrays)
            for (array, offset, length, source), row in zip(writes, results, strict=False):
                if source is None or row is not rows[source]:
                    array[(i + offset) % length] = row
            states, stops = results[self.kept], self.as_while and results[-1]
            # Kept here, they would lie beside those of the next step.
            del rows, results
            if stops:
                break
        return i + 1, states

    def _results(self, rows, states, constants):
        results = [*self.step(*rows, *states, *constants)]
        for k in self.memory.copied:
            results[k] = copy_value(results[k])
        return results

    def _new_arrays(self, lengths, rows):
        """Make the traces without initial values; their rows are like the first ones."""
        return [
            self.xp.empty((int(length), *row.shape), dtype)
            for length, row, (dtype, _) in zip(lengths, rows, self.new, strict=True)
        ]

    def _writes(self, arrays):
        """Return array, offset and length for each row to write, and the input that may be there already."""
        targets = [
            (array, offset, len(array))
            for array, trace in zip(arrays, self.memory.traces, strict=True)
            for offset in trace.writes
        ]
        return [(*target, source) for target, source in zip(targets, self.memory.replaced, strict=True)]

    def _in_order(self, array, filled):
        """Return the rows of a trace in the order of their steps, of which ``filled`` have been in use."""
        length = len(array)
        if 1 < length < filled:
            return self.xp.roll(array, -(filled % length), axis=0)
        if filled < length:
            if self.as_while:
                return array[:filled]
            array[filled:] = 0
        return array


def check_steps(n_steps: int, sequences) -> None:
    """Raise unless ``n_steps`` is a number of steps that all ``sequences`` have."""
    if n_steps < 0:
        raise IndexError(f"a Scan of {n_steps} steps; n_steps must not be negative")
    for k, sequence in enumerate(sequences):
        if len(sequence) < n_steps:
            raise ValueError(
                f"sequence {k} of a Scan has {len(sequence)} rows, fewer than its {n_steps} steps"
            )


def _slices(*sizes: int) -> list[slice]:
    """Return consecutive slices of the given sizes."""
    return [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
