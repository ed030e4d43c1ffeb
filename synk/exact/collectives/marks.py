"""Say in a declared result what each rank adds to a value of one process.

loss of the batch -> addend -> on each rank, such that all ranks' addends sum up to it
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from synk.compile import array_funcify
from synk.exact.rules.relations import Own
from synk.exact.rules.table import Instead, Outcome, Relations, relate


def addend(x: Any) -> Variable:
    """Return the part that this rank's slice adds to the value that one process would compute for ``x``.

    For results and updates that declare the operation "sum": what they hold, added up over slices and ranks,
    is ``x`` of the whole batch. It costs nothing where ranks have parts of ``x`` already, as of sums, means
    over rows and their gradients.

    Parameters
    ----------
    x : floating-point tensor

    Returns
    -------
    tensor of the shape and dtype of ``x``
        With one rank, and in a plain ``pytensor.function``: ``x``.
    """
    return Addend()(pt.as_tensor_variable(x))


def own(x: Any, why: str) -> Variable:
    """Return each rank's own value of ``x``, for which the mean over rows of all ranks' stands."""
    return OwnValue(why)(x)


def whole(x: Any, otherwise: str) -> Variable:
    """Return ``x`` as it is, and say that its shared variables are equal on all ranks by then.

    So they are taken in declared results too: a call is refused while a variable behind ``x`` is per rank, as
    it is while only parts of a sum stand in it, which no all-reduce has added up yet.

    Parameters
    ----------
    x : tensor
    otherwise : str
        What to do where that is not meant: the end of the error's sentence, after "or".
    """
    return Whole(otherwise)(pt.as_tensor_variable(x))


class Mark(Op):
    """A value as it is, of which something is said."""

    __props__: tuple[str, ...] = ()
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]

    def infer_shape(self, *arguments: Any) -> list:  # those of versions before 3.1 have the graph in front
        return list(arguments[-1])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return list(cotangents)


class Addend(Mark):
    """A mark in declared results, which `synk.function` replaces by what a rank adds."""


class OwnValue(Mark):
    """A mark of what each rank has of its own."""

    __props__ = ("why",)

    def __init__(self, why: str):
        self.why = why


class Whole(Mark):
    """A mark of what is taken as equal on all ranks, whatever is declared of the result."""

    __props__ = ("otherwise",)

    def __init__(self, otherwise: str):
        self.otherwise = otherwise


@array_funcify.register(Mark)
def marked(op, node, xp):
    """The value as it is."""
    return lambda x: x


@relate.register(Addend)
@relate.register(Whole)
def value_itself(op: Mark, node: Apply, given: Relations) -> Outcome:
    """In undeclared results, which take all as equal, it is the value itself."""
    return Instead(node.inputs)


@relate.register(OwnValue)
def own_value(op: OwnValue, node: Apply, given: Relations) -> Outcome:
    """As it is said."""
    return given, [Own(op.why)]
