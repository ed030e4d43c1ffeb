"""Rewrites that take products out of the steps of a Scan, so that one large product replaces many small ones.

    Scan -> products of matrices as `Dot`, which PyTensor's own rewrites of Scan look for: sums of gradients
         -> products of a sequence's rows and a matrix that is the same in all steps, before the loop

They run before PyTensor's rewrites of Scan, which then take out what is left around the products. To compute
a product after the loop, those let the loop return the rows of its factors; rows that it returns twice, for
two products, are merged at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, MergeOptimizer
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import Subtensor

from synk.compile.compat import plain_graph
from synk.compile.rewriting.rewrites import NATIVE


class RewriteScans(GraphRewriter):
    """A rewriter that replaces Scans by better ones.

    Parameters
    ----------
    better : callable
        Takes a graph; returns a function that takes a Scan node and returns variables to replace its outputs,
        or None to leave the node.
    """

    def __init__(self, better: Callable[[FunctionGraph], Callable[[Apply], Sequence[Variable] | None]]):
        super().__init__()
        self.better = better

    def apply(self, fgraph: FunctionGraph) -> None:
        better = self.better(fgraph)
        for node in fgraph.toposort():
            if isinstance(node.op, Scan) and (made := better(node)) is not None:
                pairs = list(zip(node.outputs, made, strict=True))
                fgraph.replace_all(pairs, reason="better steps", import_missing=True)


def without_products(node: Apply, products: HoistedProducts) -> Sequence[Variable] | None:
    """Return the outputs of a Scan that has fewer products in its step, or None if there is no product."""
    op = node.op
    graph = plain_graph(op)
    if not use_dots(graph):
        return None
    MergeOptimizer().rewrite(graph)
    sequences = dict(zip(op.inner_seqs(graph.inputs), op.outer_seqs(node.inputs), strict=True))
    same = dict(zip(op.inner_non_seqs(graph.inputs), op.outer_non_seqs(node.inputs), strict=True))
    made: dict[Variable, Variable] = {}
    if not op.info.as_while:  # a loop that ends early may use fewer rows than there are
        for inner in graph.toposort():
            if isinstance(inner.op, DimShuffle):
                move_outside(inner, sequences, same)
            rows = product_of_rows(inner, sequences, same, products)
            if rows is not None:
                row = inner.outputs[0].type()
                graph.replace_all([(inner.outputs[0], row)], import_missing=True)
                made[row] = rows
    inputs = [*made, *(variable for variable in graph.inputs if variable not in made)]
    steps, *others = node.inputs
    changed = scan_of(op, inputs, graph.outputs, n_seqs=op.info.n_seqs + len(made))
    return changed.make_node(steps, *made.values(), *others).outputs


def scan_of(op: Scan, inputs: Sequence[Variable], outputs: Sequence[Variable], **numbers: int) -> Scan:
    """Return a Scan like another one, with a step from ``inputs`` to ``outputs``.

    ``numbers`` are the fields of its info that differ: how many sequences, states and so on there are.
    """
    kept = {name: getattr(op, name) for name in ("mode", "profile", "truncate_gradient", "name", "allow_gc")}
    return Scan(list(inputs), list(outputs), replace(op.info, **numbers), **kept)


def use_dots(graph: FunctionGraph) -> bool:
    """Replace Blockwise products of single matrices or vectors by `Dot`; tell whether there is any Dot."""
    for node in graph.toposort():
        if (
            isinstance(node.op, Blockwise)
            and isinstance(node.op.core_op, Dot)
            and node.op.batch_ndim(node) == 0
        ):
            made = node.op.core_op(*node.inputs)
            made.tag.trace = getattr(node.outputs[0].tag, "trace", [])
            graph.replace_all([(node.outputs[0], made)], import_missing=True)
    return any(isinstance(node.op, Dot) for node in graph.apply_nodes)


def move_outside(node: Apply, sequences: dict[Variable, Variable], same: dict[Variable, Variable]) -> None:
    """Apply a step's DimShuffle to the whole sequence, or the constant, outside of the loop instead.

    ``sequences`` and ``same`` map variables of the step to those outside; the result is added to them.
    """
    (source,), (made,), order = node.inputs, node.outputs, node.op.new_order
    if source in same:
        same[made] = same[source].dimshuffle(order)
    elif source in sequences:
        of_all = [axis if axis == "x" else axis + 1 for axis in order]
        sequences[made] = sequences[source].dimshuffle(0, *of_all)


def product_of_rows(
    node: Apply,
    sequences: dict[Variable, Variable],
    same: dict[Variable, Variable],
    products: HoistedProducts,
) -> Variable | None:
    """Return the product of all rows of a sequence with a constant matrix, if a node computes one of them.

    None for any other node.
    """
    if not isinstance(node.op, Dot):
        return None
    left, right = node.inputs
    if left in sequences and right in same and right.type.ndim == 2:
        return products.of(sequences[left], same[right])
    if left in same and right in sequences and left.type.ndim == 2:
        if right.type.ndim == 1:
            return products.of(sequences[right], same[left].T)
        if right.type.broadcastable[1]:
            return products.of(sequences[right].dimshuffle(0, 1), same[left].T).dimshuffle(0, 1, "x")
    return None


class HoistedProducts:
    """The products of rows and matrices outside of loops; each is computed once, for gradients too."""

    def __init__(self, fgraph: FunctionGraph):
        self._fgraph = fgraph
        self._known: dict[tuple[Variable, Variable], Variable] = {}

    def of(self, rows: Variable, matrix: Variable) -> Variable:
        """Return ``rows @ matrix``; for a slice of rows whose product is known, a slice of that product."""
        source, parts = rows, []
        while not self._knows(source, matrix) and is_part(source):
            parts.append(source.owner)
            source = source.owner.inputs[0]
        if not self._knows(source, matrix):
            self._known[rows, matrix] = rows_times(rows, matrix)
            return self._known[rows, matrix]
        found = self._known[source, matrix]
        for part in reversed(parts):
            found = part.op(found, *part.inputs[1:])
        return found

    def _knows(self, rows: Variable, matrix: Variable) -> bool:
        if (rows, matrix) not in self._known:
            found = self._of_states(rows, matrix)
            if found is not None:
                self._known[rows, matrix] = found
        return (rows, matrix) in self._known

    def _of_states(self, rows: Variable, matrix: Variable) -> Variable | None:
        """Return the products of states and a matrix that a loop computes anyhow; let the loop return them.

        The rows must be the states before each step, which are all rows of a trace but the last. None for
        other rows.
        """
        if not is_all_but_the_last(rows):
            return None
        states = rows.owner.inputs[0]
        node = states.owner
        if node is None or not isinstance(node.op, Scan) or node.op.info.as_while:
            return None
        op, info = node.op, node.op.info
        k = node.outputs.index(states) - info.n_mit_mot - info.n_mit_sot
        if not 0 <= k < info.n_sit_sot:
            return None
        graph = plain_graph(op)
        same = dict(zip(op.inner_non_seqs(graph.inputs), op.outer_non_seqs(node.inputs), strict=True))
        for inner in graph.apply_nodes:
            left, right = inner.inputs[0], inner.inputs[-1]
            if (
                isinstance(inner.op, Dot)
                and left is op.inner_sitsot(graph.inputs)[k]
                and same.get(right) is matrix
            ):
                return self._keep(node, graph, inner.outputs[0])
        return None

    def _keep(self, node: Apply, graph: FunctionGraph, variable: Variable) -> Variable:
        """Let a Scan return a variable of its step, too; return the variable's rows, one for each step."""
        op, info = node.op, node.op.info
        n_states, n_written = info.n_untraced_sit_sot, len(graph.outputs) - info.n_untraced_sit_sot
        outputs = [*graph.outputs[:n_written], variable, *graph.outputs[n_written:]]
        at = len(node.inputs) - info.n_non_seqs
        inputs = [*node.inputs[:at], node.inputs[0], *node.inputs[at:]]
        changed = scan_of(op, graph.inputs, outputs, n_nit_sot=info.n_nit_sot + 1)
        made = list(changed.make_node(*inputs).outputs)
        rows = made.pop(len(made) - 1 - n_states)
        pairs = list(zip(node.outputs, made, strict=True))
        self._fgraph.replace_all(pairs, reason="kept products", import_missing=True)
        return rows


def is_part(variable: Variable) -> bool:
    """Tell whether a variable is a slice of the rows of another one."""
    op = variable.owner and variable.owner.op
    return isinstance(op, Subtensor) and len(op.idx_list) == 1 and isinstance(op.idx_list[0], slice)


def is_all_but_the_last(variable: Variable) -> bool:
    """Tell whether a variable has all rows of another but the last."""
    if not is_part(variable):
        return False
    (rows,), (_, *ends) = variable.owner.op.idx_list, variable.owner.inputs
    to_the_end = rows.start is None and rows.step is None and len(ends) == 1
    return to_the_end and isinstance(ends[0], Constant) and ends[0].data == -1


def rows_times(rows: Variable, matrix: Variable) -> Variable:
    """Return ``rows @ matrix``; each of the rows is a vector or a matrix."""
    if rows.type.ndim == 2:
        return pt.dot(rows, matrix)
    lengths: Any = rows.shape
    flat = rows.reshape((lengths[0] * lengths[1], lengths[2]))
    return pt.dot(flat, matrix).reshape((lengths[0], lengths[1], matrix.shape[1]))


def without_duplicate_rows(node: Apply) -> list[Variable] | None:
    """Make a Scan that returns some rows twice return them once.

    Returns the variables that replace the outputs of ``node``, or None if it returns no rows twice.
    """
    op, info = node.op, node.op.info
    graph = plain_graph(op)
    MergeOptimizer().rewrite(graph)
    first_in = len(node.inputs) - info.n_non_seqs - info.n_nit_sot  # the lengths of these traces
    first_out = len(graph.outputs) - info.as_while - info.n_untraced_sit_sot - info.n_nit_sot
    kept: dict[tuple[Variable, Variable], int] = {}
    duplicates: dict[int, int] = {}
    for k in range(info.n_nit_sot):
        trace = graph.outputs[first_out + k], node.inputs[first_in + k]
        if trace in kept:
            duplicates[k] = kept[trace]
        kept.setdefault(trace, k)
    if not duplicates:
        return None
    first = len(node.outputs) - info.n_untraced_sit_sot - info.n_nit_sot
    inputs, inner, places = (
        [at for at in range(len(whole)) if at - begin not in duplicates]
        for whole, begin in ((node.inputs, first_in), (graph.outputs, first_out), (node.outputs, first))
    )
    changed = scan_of(
        op, graph.inputs, [graph.outputs[at] for at in inner], n_nit_sot=info.n_nit_sot - len(duplicates)
    )
    made = dict(zip(places, changed.make_node(*(node.inputs[at] for at in inputs)).outputs, strict=True))
    return [
        made[first + duplicates[at - first] if at - first in duplicates else at]
        for at in range(len(node.outputs))
    ]


hoist = RewriteScans(lambda fgraph: partial(without_products, products=HoistedProducts(fgraph)))
optdb.register("hoist_products", hoist, NATIVE, position=0.04)  # before PyTensor's, at 0.05
# Behind the merging of equal nodes, at 49, and before regions, at 49.2.
optdb.register("merge_traces", RewriteScans(lambda fgraph: without_duplicate_rows), NATIVE, position=49.1)
