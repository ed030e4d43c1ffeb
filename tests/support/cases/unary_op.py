"""An Op of one input and one output of the same type, which a test fills in."""

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op


class UnaryOp(Op):
    """A base class of Ops for tests; subclasses define ``perform``, or a test registers an implementation."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        raise AssertionError("runs through its array entry")
