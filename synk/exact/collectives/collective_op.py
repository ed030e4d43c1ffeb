"""The base class of Ops that are collectives, and a rewrite that puts them into the same order on all ranks.

    CollectiveOp(number): meet(xp, together, *arrays)
    CollectivesInTurn: each collective waits for the one before it, in one order on all ranks

Ranks must run the same collectives in the same order. They run equally many, because all compile the same
graph, and a rank that has no rows for a slice takes part with none. The order is the same, because the
rewrite makes each collective an input of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any, ClassVar

import numpy as np
import pytensor.tensor as pt
from pytensor import config
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter

from synk.compile import array_funcify
from synk.compile.tables import DEVICE, HOST, free_inputs, host_inputs, side
from synk.exact.run_values import ranks

_numbers = count()


class CollectiveOp(Op):
    """An Op that is a collective; the last input of its nodes is the communicator, `ranks`.

    Parameters
    ----------
    number : int, optional
        By default the next number of this process. Collectives run in the order of their numbers. Different
        numbers also keep PyTensor from merging two collectives with equal inputs on one rank and not on
        another.
    """

    lengths: ClassVar[Sequence[int]] = ()  # positions of the inputs that are read on the host

    def __init__(self, number: int | None = None):
        self.number = next(_numbers) if number is None else number

    def meet(self, xp: Any, together: Any, *arrays: Any) -> Sequence[Any]:
        """Run the collective on ``arrays`` of the module ``xp`` with the communicator ``together``.

        Returns the outputs, which are new arrays.
        """
        raise NotImplementedError

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        *arrays, together = inputs
        results = self.meet(np, together.on_host, *arrays)
        for storage, result in zip(output_storage, results, strict=True):
            storage[0] = result

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return, as PyTensor asks for it, that the gradient goes to the first input only."""
        return [[k == 0] for k in range(len(node.inputs))]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        *others, together = inputs[1:]
        if is_discrete(inputs[0]):
            first = inputs[0].zeros_like(dtype=config.floatX)
        else:
            # ``together`` is not always `ranks`: inside of a Scan the communicator is an input of the step.
            first = self.adjoint(inputs[0], outputs[0], cotangents[0], together)
        return [first, *(DisconnectedType()() for _ in [*others, together])]

    def adjoint(self, x: Variable, y: Variable, slope: Variable, together: Variable) -> Variable:
        """Return the gradient of the sum of all ranks' losses with respect to the input ``x``.

        ``slope`` is the gradient of this rank's loss with respect to the output ``y``.
        """
        raise NotImplementedError


def is_discrete(x: Variable) -> bool:
    """Tell whether ``x`` holds integers or booleans, for which there is no gradient."""
    return np.dtype(x.type.dtype).kind in "biu"


def any_length(x: Any, axis: int) -> tuple[int | None, ...]:
    """Return the static shape of ``x`` with None along ``axis``; raise TypeError if it has no such axis."""
    if axis not in range(x.type.ndim):
        raise TypeError(f"an array of {x.type.ndim} axes has no axis {axis}; x[None] has one more")
    return (*x.type.shape[:axis], None, *x.type.shape[axis + 1 :])


def whole_number(value: Any) -> Variable:
    """Return a length as a 0-d tensor of int64."""
    return pt.as_tensor_variable(value, ndim=0).astype("int64")


@array_funcify.register(CollectiveOp)
def collective_entry(op, node, xp):
    """Return a function that runs the collective with the rank's communicator.

    Debug mode computes a device's collective again with NumPy: then ``xp`` is NumPy, and the host's
    communicator is used.
    """

    def run(*inputs):
        *arrays, together = inputs
        results = op.meet(xp, together.on_host if xp is np else together, *arrays)
        return results[0] if len(results) == 1 else tuple(results)

    return run


@side.register(CollectiveOp)
def side_of_collectives(op, node):
    """Run collectives on the device, where the arrays are that the rank's communicator takes."""
    return DEVICE


@host_inputs.register(CollectiveOp)
def host_inputs_of_collectives(op, node):
    """Return the inputs that Python reads on the host: lengths, and the communicator, which is no array."""
    return (*op.lengths, len(node.inputs) - 1)


# --- in turn ---------------------------------------------------------------------------------------


class After(Op):
    """An Op that returns its first input, the communicator, after its second input was computed."""

    __props__ = ()
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def make_node(self, together: Any, previous: Any) -> Apply:
        return Apply(self, [together, previous], [together.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]


class CollectivesInTurn(GraphRewriter):
    """Make each collective wait for the one before it, in an order that is the same on all ranks."""

    def apply(self, fgraph: FunctionGraph) -> None:
        """Chain the collectives of ``fgraph``: those that depend on no others first, each group by number.

        A loop, or another Op with collectives in the graph inside, counts as one collective.
        """
        behind: dict[Variable, int] = {}  # the longest chain of collectives on which a variable depends
        meetings = []
        for node in fgraph.toposort():
            depth = max([behind.get(variable, 0) for variable in node.inputs], default=0)
            number = min(numbers_in(node.op), default=None)
            if number is not None:
                meetings.append((depth, number, node))
                depth += 1
            behind.update(dict.fromkeys(node.outputs, depth))
        meetings.sort(key=lambda entry: entry[:2])
        for (*_, previous), (*_, node) in pairwise(meetings):
            position = next(k for k, variable in enumerate(node.inputs) if variable.type == ranks.type)
            waiting = After()(node.inputs[position], previous.outputs[0])
            fgraph.change_node_input(node, position, waiting, reason="in_turn")


def numbers_in(op: Any) -> Iterator[int]:
    """Yield the numbers of the collectives in an Op: its own, or those in the graphs inside of it."""
    if isinstance(op, CollectiveOp):
        yield op.number
    for part in ("true_branch", "false_branch"):
        if hasattr(op, part):
            yield from numbers_in(getattr(op, part))
    for node in getattr(getattr(op, "fgraph", None), "apply_nodes", ()):
        yield from numbers_in(node.op)


def has_collectives(op: Any) -> bool:
    """Tell whether an Op is a collective, or has one in a graph inside of it."""
    return next(numbers_in(op), None) is not None


@array_funcify.register(After)
def after(op, node, xp):
    """Return a function that returns the first input as it is."""
    return lambda together, previous: together


@side.register(After)
def side_of_waiting(op, node):
    """Run on the host, because no array is read."""
    return HOST


@free_inputs.register(After)
def free_inputs_of_waiting(op, node):
    """Return the second input: its value is not read."""
    return (1,)


optdb.register("collectives_in_turn", CollectivesInTurn(), "fast_run", "fast_compile", position=48.6)
