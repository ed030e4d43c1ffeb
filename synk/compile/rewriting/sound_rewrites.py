"""Run PyTensor's rewrites that are wrong for some graphs on all other graphs.

PyTensor's rewriter, excluded by name -> the same, without the nodes for which it is wrong
terms of sums, cast                   -> PyTensor's search for Gemm
"""

from collections.abc import Callable, Iterator

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, NodeRewriter, dfs_rewriter, node_rewriter
from pytensor.scalar.basic import EQ, GE, LE, NEQ, Add, Mul, Sub, discrete_dtypes
from pytensor.scan.op import Scan
from pytensor.scan.rewriting.trace import scan_reduce_trace_no_prealloc
from pytensor.tensor.basic import cast, constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot, Prod, add, mul, neg, reciprocal, sub, true_div
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

from synk.compile.rewriting.patterns import where_nested

SOUND = "synk_sound"  # the tag of all of them
REAL = ("float16", "float32", "float64")


class CastTerms(GraphRewriter):
    """Cast terms of sums, and factors, to the dtype of the result, which changes no number.

    PyTensor's search for Gemm drops terms of another dtype than their sum's: in 3.0 to 3.3
    ``k + (z - 0.25 * (a @ a))`` loses an integer matrix ``k``.
    """

    def apply(self, fgraph: FunctionGraph) -> None:
        """Cast the terms, if the graph has any product of matrices."""
        nodes = fgraph.toposort()
        if not any(isinstance(node.op, Dot) for node in nodes):
            return
        for node in nodes:
            output = node.outputs[0]
            if not _opened(node):
                continue
            if output.type.dtype in REAL and any(
                term.type.dtype != output.type.dtype for term in node.inputs
            ):
                terms = [_as_dtype(term, output.type.dtype) for term in node.inputs]
                fgraph.replace_validate(output, node.op(*terms), reason="cast_terms")


def _opened(node: Apply) -> bool:
    """Tell whether PyTensor's search for Gemm looks at the terms of a sum, or at the factors of a product.

    Of products it skips those of two arrays, and those with an array of integers or truth values.
    """
    if not isinstance(node.op, Elemwise):
        return False
    if not isinstance(node.op.scalar_op, Mul):
        return isinstance(node.op.scalar_op, Add | Sub)
    arrays = [factor for factor in node.inputs if any(length != 1 for length in factor.type.shape)]
    return len(arrays) < 2 and all(array.type.dtype in REAL for array in arrays)


def _as_dtype(term: Variable, dtype: str) -> Variable:
    if isinstance(term, Constant):
        return constant(term.data.astype(dtype))
    return term if term.type.dtype == dtype else cast(term, dtype)


@node_rewriter([Scan])
def reduce_trace_of_known_length(fgraph, node):
    """Keep only the rows of a Scan that are read, unless ``until`` may end it before it has made them."""
    info = node.op.info
    initial = [0] * info.n_mit_mot + [-min(taps) for taps in info.mit_sot_in_slices] + [1] * info.n_sit_sot
    initial += [0] * (len(node.outputs) - len(initial))
    reads = zip(node.outputs, initial, strict=True)
    if info.as_while and not all(_read_from_its_end(fgraph, trace, rows) for trace, rows in reads):
        return None
    return scan_reduce_trace_no_prealloc.transform(fgraph, node)


def _read_from_its_end(fgraph: FunctionGraph, trace: Variable, initial: int) -> bool:
    """Tell whether every reader takes the last row of a trace, or all rows behind some of the initial ones.

    A loop that ends early has these rows, too.
    """
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
    """Return a rewriter that does what ``rewriter`` does, except to nodes of which ``wrong`` is true."""

    @node_rewriter(rewriter.tracks())
    def guarded(fgraph, node):
        return None if wrong(node) else rewriter.transform(fgraph, node)

    return guarded


def _compares_with_itself(node: Apply) -> bool:
    """Tell whether a comparison says which elements are NaN, as ``x != x`` does."""
    compares = isinstance(node.op.scalar_op, EQ | NEQ | LE | GE)
    return compares and node.inputs[0] is node.inputs[1] and not _discrete(node.inputs[0])


def _counts(node: Apply) -> bool:
    """Tell whether a reduction has another dtype than its elements.

    PyTensor multiplies a repeated element by the number of repeats, in the dtype of the element, where it may
    wrap.
    """
    return node.inputs[0].type.dtype != node.outputs[0].type.dtype


def _wraps_before(node: Apply) -> bool:
    """Tell whether elements of a reduction wrap before they are combined in a wider dtype.

    In ``sum(3 * x)`` of narrow ``x``, the products do; ``3 * sum(x)`` would not.
    """
    reduced, result = node.inputs[0], node.outputs[0]
    if _discrete(reduced) and (isinstance(node.op, Prod) or reduced.type.dtype != result.type.dtype):
        return True
    terms = reduced.owner.inputs if reduced.owner else ()
    return sum(_narrower(term, reduced) for term in terms) > 1


def _wraps_inside(node: Apply) -> bool:
    """Tell whether a reduction has integers of another dtype than its result.

    If the integers are themselves the result of a reduction, that one wraps in its own dtype.
    """
    return _discrete(node.inputs[0]) and node.inputs[0].type.dtype != node.outputs[0].type.dtype


def _regroups_narrow(node: Apply) -> bool:
    """Tell whether regrouping terms of sums or products could combine some in a narrower integer dtype."""
    family = next((one for one in FAMILIES if node.op in one), ())
    result, terms, n_narrow = node.outputs[0], list(node.inputs), 0
    while terms:
        term = terms.pop()
        inside = term.owner is not None and term.owner.op in family
        if _narrower(term, result):
            n_narrow += 1
            if inside or n_narrow > 1:
                return True
        elif inside:
            terms.extend(term.owner.inputs)
    return False


def _near(node: Apply) -> Iterator[Variable]:
    """Yield a node's inputs, and the variables that elementwise Ops compute them from, two Ops deep.

    So far the patterns of PyTensor's rewrites reach.
    """
    for one in node.inputs:
        yield one
        for two in one.owner.inputs if one.owner and isinstance(one.owner.op, Elemwise) else ():
            yield two
            yield from two.owner.inputs if two.owner and isinstance(two.owner.op, Elemwise) else ()


def _widens(node: Apply) -> bool:
    """Tell whether a node, or one near it, converts integers: they may wrap, as in ``exp(x + y)``."""
    return any(_narrower(one, node.outputs[0]) for one in _near(node))


def _has_integers(node: Apply) -> bool:
    """Tell whether a node has integers near it; the smallest integer of a dtype has no absolute value."""
    return any(_discrete(one) and not isinstance(one, Constant) for one in _near(node))


def _is_unsigned(node: Apply) -> bool:
    """Tell whether a node negates numbers that have no sign."""
    return np.dtype(node.inputs[0].type.dtype).kind in "ub"


def _discrete(variable: Variable) -> bool:
    return getattr(variable.type, "dtype", None) in discrete_dtypes


def _narrower(variable: Variable, result: Variable) -> bool:
    """Tell whether a variable has integers of another dtype than a result, so that they may wrap in it."""
    other = getattr(variable.type, "dtype", None) != getattr(result.type, "dtype", None)
    return other and _discrete(variable) and not isinstance(variable, Constant)


FAMILIES = ((mul, true_div, reciprocal), (add, sub, neg))

GUARDED = {
    "local_useless_elemwise": _compares_with_itself,
    "local_useless_elemwise_comparison": _compares_with_itself,
    "local_careduce_of_alloc": _counts,
    "local_sum_prod_of_mul_or_div": _wraps_before,
    "local_sum_of_neg_to_neg_of_sum": _wraps_before,
    "local_reduce_chain": _wraps_inside,
    "local_mul_canonizer": _regroups_narrow,
    "local_add_canonizer": _regroups_narrow,
    "local_neg_to_mul": _is_unsigned,
    "local_max_to_min": _is_unsigned,
    **dict.fromkeys(
        (
            "local_mul_specialize",
            "local_mul_switch_sink",
            "local_div_switch_sink",
            "local_greedy_distributor",
            "local_sub_neg_to_add",
            "local_add_neg_to_sub",
            "local_neg_div_neg",
            "local_exp_log",
            "local_exp_log_nan_switch",
            "local_sqrt_sqr",
            "local_log_sqrt_sqr",
            "local_log1p",
            "local_mul_exp_to_exp_add",
            "local_div_exp_to_mul_exp",
            "local_mul_pow_to_pow_add",
            "local_1msigmoid",
            "logsigm_to_softplus",
            "local_erf_neg_minus_one",
            "local_sigm_times_exp",
            "local_reciprocal_1_plus_exp",
        ),
        _widens,
    ),
    **dict.fromkeys(("local_abs_lift", "local_abs_merge", "local_useless_abs"), _has_integers),
}

for _name, _wrong in GUARDED.items():
    for _database in ("canonicalize", "stabilize", "specialize", "uncanonicalize"):
        # Not each version has all of them.
        for _rewriter in tuple(optdb[_database].__db__.get(_name, ())):
            optdb[_database].register(f"sound_{_name}", _unless(_wrong, where_nested(_rewriter)), SOUND)

optdb.register("cast_terms", CastTerms(), SOUND, position=1.69)  # before the search, at 1.7
optdb.register(
    "reduce_trace_of_known_length",
    dfs_rewriter(reduce_trace_of_known_length, ignore_newtrees=True),
    SOUND,
    position=1.612,  # PyTensor's
)
