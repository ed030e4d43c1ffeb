"""Remove the collectives from graphs for a run of one rank, where each returns its input.

Definition -> without_collectives -> a Definition that computes the same on one rank
"""

from __future__ import annotations

from dataclasses import replace

from pytensor.graph.basic import Variable

from synk.compile.programs.graphs.origin import remade
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import CollectiveOp
from synk.exact.definition import Definition


def without_collectives(definition: Definition) -> Definition:
    """Return the definition for a run of one rank, with every collective replaced by its input.

    On one rank a collective changes nothing, but it would copy gradients.
    """
    new: dict[Variable, Variable] = {}
    for node in topological(definition.results):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        if isinstance(node.op, CollectiveOp):
            new.update(zip(node.outputs, inputs, strict=False))  # the rest: lengths and `ranks`
        elif inputs != node.inputs:
            new.update(zip(node.outputs, remade(node, inputs).outputs, strict=True))
    results = [new.get(variable, variable) for variable in definition.results]
    n_outputs = len(definition.outputs)
    pairs = zip(definition.updates, results[n_outputs:], strict=True)
    return replace(
        definition,
        outputs=tuple(results[:n_outputs]),
        updates=tuple(replace(update, value=value) for update, value in pairs),
    )
