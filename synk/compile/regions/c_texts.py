"""The table of C texts: what an Op is in C.

    @c_text.register(SpecifyShape)
    def specify_shape(op, node, region):
        \"\"\"Pass an array on, if it has such a shape.\"\"\"
        for axis, length in enumerate(node.inputs[1:]):
            if not isinstance(length.type, NoneTypeT):
                known = region.variables.length(node.inputs[0], axis)
                region.text.demand(f"{known} == {region.variables.number(length)}")
        region.variables.same(node.outputs[0], node.inputs[0])

An entry adds lines to the region that is being written, a `RegionWriter`, and notes what the node's outputs
are in it. It raises `NoText` for a node that it cannot write; so does an Op without an entry. Where a line
demands something that does not hold in a call, the region gives up that call, and its nodes run in Python
instead: they raise the error, if it is one.
"""

from functools import singledispatch
from typing import Any

from pytensor.graph.basic import Apply


class NoText(NotImplementedError):
    """A node cannot be written in C."""


@singledispatch
def c_text(op: Any, node: Apply, region: Any) -> None:
    """Add what ``node`` computes to ``region``."""
    raise NoText(f"no C text for {op}")
