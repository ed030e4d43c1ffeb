"""Remove the collectives from graphs for a run of one rank, where each returns its input.

Definition -> without_collectives -> a Definition that computes the same on one rank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Variable

from synk.compile.programs.graphs.serialize import topological
from synk.compile.programs.graphs.substitute import substitute
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.definition import Definition


def without_collectives(definition: Definition) -> Definition:
    """Return the definition for a run of one rank, with every collective replaced by its input.

    On one rank a collective changes nothing, but it would copy gradients.
    """
    results = definition.results
    while given := _given_to_collectives(results):  # one pass for each collective in a chain of them
        results = substitute(results, given)
    n_outputs = len(definition.outputs)
    pairs = zip(definition.updates, results[n_outputs:], strict=True)
    return replace(
        definition,
        outputs=tuple(results[:n_outputs]),
        updates=tuple(replace(update, value=value) for update, value in pairs),
    )


def _given_to_collectives(results: Sequence[Variable]) -> dict[Variable, Variable]:
    return {
        output: value
        for node in topological(results)
        if isinstance(node.op, CollectiveOp)
        for output, value in zip(node.outputs, node.inputs, strict=False)  # the rest: lengths and `ranks`
    }
