"""Replace variables in a graph, whatever its depth.

PyTensor's own ``clone_replace`` recurses, and stops at about a thousand nodes.
"""

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Variable

from synk.compile.programs.graphs.origin import remade
from synk.compile.programs.graphs.serialize import topological


def substitute(outputs: Sequence[Variable], replacements: Mapping[Variable, Variable]) -> list[Variable]:
    """Return ``outputs`` with variables replaced, all at the same time.

    Parameters
    ----------
    outputs : sequence of Variable
        Left as they are; nodes that lead from a replaced variable to an output are made anew.
    replacements : mapping of Variable to Variable
        A replacement may have another static shape; the types of what depends on it follow.
    """
    if not replacements:
        return list(outputs)
    new = dict(replacements)
    for node in topological(outputs, roots=replacements):
        if any(variable in new for variable in node.inputs):
            here = remade(node, [new.get(variable, variable) for variable in node.inputs])
            for old, made in zip(node.outputs, here.outputs, strict=True):
                new.setdefault(old, made)
    return [new.get(variable, variable) for variable in outputs]
