"""Rules of Ops with a graph inside, whose nodes are asked instead; for loops see `synk.exact.loops`."""

from __future__ import annotations

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.tensor.einsum import Einsum

from synk.compile.compat import plain_graph
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.rules.relations import SAME, SUM, Rows
from synk.exact.rules.table import Instead, Outcome, Relations, relate


@relate.register(OpFromGraph)
def graph_as_op(op: OpFromGraph, node: Apply, given: Relations) -> Outcome:
    """Replace the Op by the graph inside of it, whose nodes are asked, each by its own rule."""
    graph = plain_graph(op)
    return Instead(substitute(graph.outputs, dict(zip(graph.inputs, node.inputs, strict=True))))


@relate.register(Einsum)
def einsum(op: Einsum, node: Apply, given: Relations) -> Outcome:
    """Let rows stay rows if the result has the letter of their axis; else the result is a part of a sum."""
    inputs, arrow, output = op.subscripts.partition("->")
    terms = inputs.split(",")
    rows = [
        (term[one.axis : one.axis + 1], one)
        for term, one in zip(terms, given, strict=False)
        if isinstance(one, Rows)
    ]
    letters = {letter for letter, _ in rows}
    if (
        not arrow
        or "." in op.subscripts
        or node.outputs[0].type.dtype == "bool"
        or len(letters) != 1
        or any(term.count(*letters) > 1 for term in terms)
    ):
        return graph_as_op(op, node, given)
    (letter,), length = letters, rows[0][1].length
    wanted = [Rows(term.index(letter), length) if letter in term else SAME for term in terms]
    return wanted, [Rows(output.index(letter), length) if letter in output else SUM]
