"""The table of C texts: an entry for each Op that can be written in C.

    @c_text.register(SpecifyShape)
    def specify_shape(op, node, region):
        \"\"\"Pass an array on, if it has such a shape.\"\"\"
        for axis, length in enumerate(node.inputs[1:]):
            if not isinstance(length.type, NoneTypeT):
                known = region.variables.length(node.inputs[0], axis)
                region.text.demand(f"{known} == {region.variables.number(length)}")
        region.variables.same(node.outputs[0], node.inputs[0])

An entry adds lines to the region that is being written, a `RegionWriter`, and notes by which names later
lines know the node's outputs. It raises `NoText` for a node that it cannot write; so does an Op without an
entry. If a condition that a line demands does not hold in a call, the region gives up that call, and its
nodes run in Python instead, which raises the error if there is one.
"""

from functools import singledispatch
from typing import Any

from pytensor.graph.basic import Apply


class NoText(NotImplementedError):
    """A node cannot be written in C; the message says why."""


@singledispatch
def c_text(op: Any, node: Apply, region: Any) -> None:
    """Add the C lines that compute ``node`` to ``region``; raise NoText if the Op has no entry."""
    raise NoText(f"no C text for {op}")
