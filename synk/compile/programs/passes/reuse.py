"""Decide which elementwise nodes write over an input that nothing needs any more.

PyTensor has rewrites for this, which look at the whole graph again for every node. In the order in which
nodes run, one pass is enough: a node may write its result over an input whose memory it is the last to read,
or over the old value of the variable that the result updates.

    ProgramPlan: order, aliases, destinations -> find_reuse -> {node: the input that each output overwrites}

Pure: graphs in, decisions out.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import DenseTensorType

from synk.compile.programs.passes.aliases import Aliases
from synk.compile.programs.passes.decisions import Destinations, ProgramPlan, Reuse


def find_reuse(plan: ProgramPlan) -> Reuse:
    """Decide which inputs are overwritten, and note it in the plan's aliases."""
    outputs, aliases, found, stored = plan.fgraph.outputs, plan.aliases, plan.destinations, plan.stored
    targets = {outputs[k]: target for k, target in found.update_targets.items()}
    held = {aliases.root(output) for output in outputs}

    def fits(source: Variable, node: Apply, output: Variable, taken: list[Variable]) -> bool:
        root = aliases.root(source)
        if (source in stored) != (output in stored):
            return False
        if root in taken or root in held or not aliases.read_last(root, node):
            return False
        if any(other is not source and aliases.root(other) is root for other in node.inputs):
            return False
        if root.owner is None:
            return root is targets.get(output)
        return plan.owns(root) and root.owner not in found.slots and root.owner not in found.joins

    reuse: Reuse = {}
    for node in plan.nodes:
        if not _is_candidate(node, found) or not plan.accepts(node):
            continue
        chosen: list[Variable | None] = []
        for output in node.outputs:
            taken = [aliases.root(source) for source in chosen if source is not None]
            alike = [source for source in _alike(node, output, aliases) if fits(source, node, output, taken)]
            # The array that the result belongs in comes before others that would do.
            alike.sort(key=lambda source: aliases.root(source).owner is not None)
            chosen.append(alike[0] if alike else None)
        if any(source is not None for source in chosen):
            reuse[node] = chosen
        for output, source in zip(node.outputs, chosen, strict=True):
            if source is not None:
                if aliases.root(output) in held:
                    held.add(aliases.root(source))
                aliases.take_over(output, source)
    return reuse


def _is_candidate(node: Apply, found: Destinations) -> bool:
    elementwise = getattr(node.op, "elementwise", isinstance(node.op, Elemwise)) and not node.op.destroy_map
    return elementwise and node not in found.slots and node.outputs[0].type.ndim > 0


def _alike(node: Apply, output: Variable, aliases: Aliases) -> list[Variable]:
    """Return the inputs that have the output's dtype and shape, and fill their memory."""
    return [
        variable
        for variable in dict.fromkeys(node.inputs)
        if isinstance(variable.type, DenseTensorType)
        and not isinstance(variable, Constant)
        and variable.type.dtype == output.type.dtype
        and variable.type.broadcastable == output.type.broadcastable
        and not aliases.is_view(variable)
    ]
