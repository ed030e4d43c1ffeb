"""Run rewrites of PyTensor that are wrong for some graphs only where they hold.

PyTensor's rewriter, excluded by name -> the same, for graphs where it holds
terms of sums, cast                   -> PyTensor's search for Gemm
"""

from collections.abc import Callable

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, NodeRewriter, dfs_rewriter, node_rewriter
from pytensor.scalar.basic import EQ, GE, LE, NEQ, Add, Mul, Sub, discrete_dtypes
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.trace import scan_reduce_trace_no_prealloc
from pytensor.tensor.basic import cast, constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting import basic, math
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

SOUND = "synk_sound"  # the tag of all of them
REAL = ("float16", "float32", "float64")


class CastTerms(GraphRewriter):
    """Cast terms of sums and factors to the dtype of the result, which changes no number.

    PyTensor's search for Gemm drops terms of another dtype than their sum's: in 3.0 to 3.3
    ``k + (z - 0.25 * (a @ a))`` loses an integer matrix ``k``.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Cast, if the graph has a product of matrices at all."""
        nodes = fgraph.toposort()
        if not any(isinstance(node.op, Dot) for node in nodes):
            return
        for node in nodes:
            output = node.outputs[0]
            if not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, Add | Sub | Mul):
                continue
            if output.type.dtype in REAL and any(
                term.type.dtype != output.type.dtype for term in node.inputs
            ):
                terms = [_as_dtype(term, output.type.dtype) for term in node.inputs]
                fgraph.replace_validate(output, node.op(*terms), reason="cast_terms")


def _as_dtype(term: Variable, dtype: str) -> Variable:
    if isinstance(term, Constant):
        return constant(term.data.astype(dtype))
    return term if term.type.dtype == dtype else cast(term, dtype)


@node_rewriter([Scan])
def reduce_trace_of_known_length(fgraph, node):
    """Keep only the rows of a loop that are read, unless ``until`` may end it before those are there."""
    info = node.op.info
    initial = [0] * info.n_mit_mot + [-min(taps) for taps in info.mit_sot_in_slices] + [1] * info.n_sit_sot
    initial += [0] * (len(node.outputs) - len(initial))
    reads = zip(node.outputs, initial, strict=True)
    if info.as_while and not all(_read_from_its_end(fgraph, trace, rows) for trace, rows in reads):
        return None
    return scan_reduce_trace_no_prealloc.transform(fgraph, node)


def _read_from_its_end(fgraph: FunctionGraph, trace: Variable, initial: int) -> bool:
    """Tell whether a trace is read as a whole, without its initial rows, or in its last row."""
    for client, _ in fgraph.clients[trace]:
        if not isinstance(client.op, Subtensor):
            continue
        first, *_ = indices_from_subtensor(client.inputs[1:], client.op.idx_list)
        if not isinstance(first, slice):
            if _number(first) != -1:
                return False
            continue
        start = 0 if first.start is None else _number(first.start)
        if first.stop is not None or first.step is not None or start is None or not -1 <= start <= initial:
            return False
        if start >= 0 and not _read_from_its_end(fgraph, client.outputs[0], 0):
            return False
    return True


def _number(index) -> int | None:
    return int(index.data) if isinstance(index, Constant) else index if isinstance(index, int) else None


def _unless(wrong: Callable[[Apply], bool], rewriter: NodeRewriter) -> NodeRewriter:
    """Return a rewriter of nodes without those for which it is wrong."""

    @node_rewriter(rewriter.tracks())
    def guarded(fgraph, node):
        return None if wrong(node) else rewriter.transform(fgraph, node)

    return guarded


def _compares_with_itself(node: Apply) -> bool:
    """Tell whether a comparison says which elements are NaN, as ``x != x`` does."""
    compares = isinstance(node.op.scalar_op, EQ | NEQ | LE | GE)
    return compares and node.inputs[0] is node.inputs[1] and node.inputs[0].type.dtype not in discrete_dtypes


def _counts(node: Apply) -> bool:
    """Tell whether a reduction widens integers, which the number of repeats times one of them would not."""
    return node.inputs[0].type.dtype != node.outputs[0].type.dtype


GUARDED = {
    "local_useless_elemwise": (basic, _compares_with_itself, ("canonicalize", "specialize")),
    "local_useless_elemwise_comparison": (basic, _compares_with_itself, ("canonicalize", "specialize")),
    "local_careduce_of_alloc": (math, _counts, ("specialize",)),
}

for _name, (_module, _wrong, _databases) in GUARDED.items():
    if hasattr(_module, _name):  # not in every version
        for _database in _databases:
            optdb[_database].register(f"sound_{_name}", _unless(_wrong, getattr(_module, _name)), SOUND)

optdb.register("cast_terms", CastTerms(), SOUND, position=1.69)  # before the search, at 1.7
optdb.register(
    "reduce_trace_of_known_length",
    dfs_rewriter(reduce_trace_of_known_length, ignore_newtrees=True),
    SOUND,
    position=1.612,  # PyTensor's
)
