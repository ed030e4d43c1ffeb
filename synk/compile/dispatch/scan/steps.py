"""Entry for Scan: a Python loop around a program for the step.

    sequences[i], rows of traces, untraced states, constants
        -> step -> rows of traces, untraced states[, whether to stop]

`synk.compile.programs.graphs.scan_traces` says what a trace is. A step's results share no memory with
its inputs.
"""

from itertools import accumulate, pairwise

from pytensor.scan.op import Scan

from synk.compile.compat import inner_graph
from synk.compile.programs.emit import emit
from synk.compile.programs.graphs.scan_traces import traces_of
from synk.compile.rewriting.rewrites import inner_rewriter
from synk.compile.tables import array_funcify


@array_funcify.register(Scan)
def scan(op, node, xp):
    """Run the compiled step again and again, in a Python loop, on the rows of sequences and traces."""
    graph = inner_graph(op, inner_rewriter(xp))
    # Python reads whether to stop.
    on_host = [len(graph.outputs) - 1] if op.info.as_while else []
    return ScanLoop(op, node, emit(graph, xp, outputs_on_host=on_host), xp)


class ScanLoop:
    """The implementation of a Scan: ``loop(n_steps, *sequences, *initial, *states, *lengths, *constants)``.

    ``initial`` are the traces that start with initial values, ``lengths`` the numbers of rows of the other
    traces.

    Parameters
    ----------
    op, node : Scan and its Apply
    step : Program
        The inner graph of the Op.
    xp : module
    """

    def __init__(self, op, node, step, xp):
        info, n_states = op.info, op.info.n_untraced_sit_sot
        self.traces = traces_of(op)
        n_initial, n_written = len(self.traces) - info.n_nit_sot, sum(len(t.writes) for t in self.traces)
        self.owned = [k in op.destroy_map for k in range(n_initial)]  # arrays that it may write over
        self.host_nodes = step.host_nodes
        self.step, self.xp = step, xp
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
        arrays = [x if owned else self.xp.array(x) for x, owned in zip(initial, self.owned, strict=True)]
        if n_steps == 0:
            arrays += [self.xp.empty((0, *shape), dtype) for dtype, shape in self.new]
        else:
            done, states = self._run(n_steps, sequences, arrays, states, lengths, constants)
            ordered = slice(self.n_mit_mot, None)  # the others have a row per step
            pairs = zip(arrays[ordered], self.traces[ordered], strict=True)
            arrays[ordered] = [self._in_order(array, done + trace.reach) for array, trace in pairs]
        results = *arrays, *states
        return results[0] if len(results) == 1 else results

    def _run(self, n_steps, sequences, arrays, states, lengths, constants):
        """Take up to ``n_steps`` steps; return how many were taken, and the untraced states after the last.

        Traces without initial values are made after the first step, and appended to ``arrays``.
        """
        reads = [
            (array, offset, len(array))
            for array, trace in zip(arrays, self.traces, strict=False)
            for offset in trace.reads
        ]
        writes = []
        for i in range(n_steps):
            rows = [sequence[i] for sequence in sequences]
            rows += [array[(i + offset) % length] for array, offset, length in reads]
            results = self.step(*rows, *states, *constants)
            if i == 0:
                arrays += self._new_arrays(lengths, results[self.made])
                writes = [
                    (array, offset, len(array))
                    for array, trace in zip(arrays, self.traces, strict=True)
                    for offset in trace.writes
                ]
            for (array, offset, length), row in zip(writes, results, strict=False):
                array[(i + offset) % length] = row
            states, stops = results[self.kept], self.as_while and results[-1]
            # Kept here, they would lie beside those of the next step.
            del rows, results
            if stops:
                break
        return i + 1, states

    def _new_arrays(self, lengths, rows):
        """Return arrays for the traces without initial values, with rows like those of the first step."""
        return [
            self.xp.empty((int(length), *row.shape), dtype)
            for length, row, (dtype, _) in zip(lengths, rows, self.new, strict=True)
        ]

    def _in_order(self, array, filled):
        """Return the rows of a trace in the order of their steps.

        The array of a trace is used as a ring. ``filled`` counts all rows written so far: initial ones, and
        those that have been overwritten since.
        """
        length = len(array)
        if 1 < length < filled:
            return self.xp.roll(array, -(filled % length), axis=0)
        if filled < length:
            if self.as_while:
                return array[:filled]
            array[filled:] = 0
        return array


def check_steps(n_steps: int, sequences) -> None:
    """Raise an error if ``n_steps`` is negative, or larger than the number of rows of a sequence."""
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
