"""Sums over all ranks in the middle of a graph, for statistics of the whole batch.

    x on every rank -> all_sum -> the same sum on every rank

The ranks meet where the program has reached the sum: equally often, because all compile the same graph, and
a rank that has no rows for a slice takes part with none; in the same order, because a rewrite makes each sum
wait for the one before it.
"""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.tensor.type import TensorType

from synk.arrays.variables import ranks
from synk.compile import array_funcify
from synk.compile.tables import DEVICE, HOST, free_inputs, host_inputs, side

_numbers = count()


def all_sum(x: Any) -> Variable:
    """Return the sum over all ranks of what each has for ``x``.

    Parameters
    ----------
    x : tensor of any shape, the same on every rank
        In a function that does not scatter it is added once per rank all the same.

    Returns
    -------
    tensor of the shape and dtype of ``x``
        The same bits on every rank. With one rank, and in a plain ``pytensor.function``: ``x``.

    Notes
    -----
    The gradient is that of the sum of all ranks' losses: the sum over ranks of the gradients of the result.
    """
    return AllSum(next(_numbers))(pt.as_tensor_variable(x))


class AllSum(Op):
    """Add the values of all ranks.

    Parameters
    ----------
    number : int
        Keeps two sums apart, of which one rank could compute only one if they had the same operand.
    """

    __props__ = ("number",)

    def __init__(self, number: int):
        self.number = number

    def make_node(self, x: Any, together: Any = ranks) -> Apply:
        return Apply(self, [x, together], [TensorType(x.type.dtype, x.type.shape)()])

    def infer_shape(self, *arguments: Any) -> list:  # those of versions before 3.1 have the graph in front
        return [arguments[-1][0]]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, together = inputs
        output_storage[0][0] = together.on_host.all_reduce(x.copy(), "sum")

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        # Inside of a Scan the ranks are an input of its own.
        return [AllSum(next(_numbers))(cotangents[0], inputs[1]), DisconnectedType()()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[True], [False]]


class After(Op):
    """The ranks, once a sum has been formed."""

    __props__ = ()
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def make_node(self, together: Any, previous: Any) -> Apply:
        return Apply(self, [together, previous], [together.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]


class SumsInTurn(GraphRewriter):
    """Make each sum over ranks wait for the one before it, in an order that is the same on all ranks."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Chain the sums of ``fgraph``: first those that need no others, by number."""
        behind: dict[Variable, int] = {}  # how many sums lie behind a variable, one after another
        sums = []
        for node in fgraph.toposort():
            depth = max([behind.get(variable, 0) for variable in node.inputs], default=0)
            if isinstance(node.op, AllSum):
                sums.append((depth, node.op.number, node))
                depth += 1
            behind.update(dict.fromkeys(node.outputs, depth))
        sums.sort(key=lambda entry: entry[:2])
        for (*_, previous), (*_, node) in pairwise(sums):
            fgraph.change_node_input(node, 1, After()(node.inputs[1], previous.outputs[0]), reason="in_turn")


@array_funcify.register(AllSum)
def all_sum_entry(op, node, xp):
    """Through the communicator of the rank, which may overwrite what it is given."""
    if xp is np:  # on a device too, where debug mode computes again on the host
        return lambda x, together: together.on_host.all_reduce(np.array(x), "sum")
    return lambda x, together: together.all_reduce(xp.array(x), "sum")


@array_funcify.register(After)
def after(op, node, xp):
    """The first input as it is."""
    return lambda together, previous: together


@side.register(AllSum)
def side_of_sums(op, node):
    """Sum where the arrays of the rank are, as its communicator takes them."""
    return DEVICE


@host_inputs.register(AllSum)
def host_inputs_of_sums(op, node):
    """The ranks are no array."""
    return (1,)


@side.register(After)
def side_of_waiting(op, node):
    """Run on the host, because no array is read."""
    return HOST


@free_inputs.register(After)
def free_inputs_of_waiting(op, node):
    """Return the second input: its value is not read."""
    return (1,)


optdb.register("sums_over_ranks_in_turn", SumsInTurn(), "fast_run", "fast_compile", position=48.6)
