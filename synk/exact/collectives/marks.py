"""Ops that change no value but say how it relates to one process's value: `addend`, `own`, `whole`.

loss of the batch -> addend -> a value on each rank; the sum of the ranks' values is the loss
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

    Use it in results and updates that declare the operation "sum": added up over slices and ranks, they are
    ``x`` of the whole batch. It costs nothing if ranks have parts of ``x`` already, as of sums, means over
    rows and their gradients.

    Parameters
    ----------
    x : floating-point tensor

    Returns
    -------
    tensor of the shape and dtype of ``x``
        With one rank, and in a plain ``pytensor.function``, it is ``x``.

    See Also
    --------
    synk.ops.all_sum : adds up inside the graph.

    Examples
    --------
    >>> x, total = pt.vector("x"), pytensor.shared(0.0, name="total")
    >>> f = synk.function([x], updates=[(total, ops.addend(x.std()), "sum")])
    >>> f([1.0, 3.0])
    >>> synk.all_reduce(total, "sum")
    >>> print(total.get_value())  # of both rows, as one process has it
    1.0
    """
    return Addend()(pt.as_tensor_variable(x))


def own(x: Any, why: str) -> Variable:
    """Return ``x``, marked as each rank's own: computed from its rows only, without a collective.

    Where a result needs one value, it is the mean of the ranks' values, weighted by rows. ``why`` names the
    reason in `Function.explain`.
    """
    return OwnValue(why)(x)


def whole(x: Any, otherwise: str) -> Variable:
    """Return ``x``, marked as computed from shared variables that are equal on all ranks.

    A call of a function that uses it, also in a declared result, is refused while a shared variable behind
    ``x`` differs between ranks; for example, while each rank has a part of a gradient in it that no
    all-reduce has added up yet.

    Parameters
    ----------
    x : tensor
    otherwise : str
        The end of the error's advice, after "or": what to do if the variables are meant to differ.

    Returns
    -------
    tensor of the shape and dtype of ``x``

    Examples
    --------
    >>> v = pytensor.shared(np.zeros(2), name="v")
    >>> f = synk.function([], ops.whole(v, otherwise="leave it").sum())
    >>> print(f())
    0.0
    >>> synk.set_value(1, v, np.ones(2))
    >>> try:
    ...     f()
    ... except ValueError as error:
    ...     print("refused")
    refused
    """
    return Whole(otherwise)(pt.as_tensor_variable(x))


class Mark(Op):
    """An Op that returns its input, and marks it for the rules of relations."""

    __props__: tuple[str, ...] = ()
    view_map = {0: [0]}  # noqa: RUF012  (PyTensor's convention)

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]

    def infer_shape(self, *arguments: Any) -> list:  # PyTensor before 3.1 passes the graph first
        return list(arguments[-1])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        return list(cotangents)


class Addend(Mark):
    """The mark of `addend`; in declared results `synk.function` replaces it by the rank's part of the sum."""


class OwnValue(Mark):
    """The mark of `own`: a value that each rank computes from its own rows only."""

    __props__ = ("why",)

    def __init__(self, why: str):
        self.why = why


class Whole(Mark):
    """The mark of `whole`: a value whose shared variables must be equal on all ranks."""

    __props__ = ("otherwise",)

    def __init__(self, otherwise: str):
        self.otherwise = otherwise


@array_funcify.register(Mark)
def marked(op, node, xp):
    """Return a function that returns the marked value as it is."""
    return lambda x: x


@relate.register(Addend)
@relate.register(Whole)
def value_itself(op: Mark, node: Apply, given: Relations) -> Outcome:
    """Replace a mark by its value: undeclared results have one process's value without it."""
    return Instead(node.inputs)


@relate.register(OwnValue)
def own_value(op: OwnValue, node: Apply, given: Relations) -> Outcome:
    """Give the marked value the relation `Own`."""
    return given, [Own(op.why)]
