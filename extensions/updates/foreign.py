"""Take update rules that were written for one process: Lasagne's, or a script's own.

    rule(loss, params) -> {variable: new value}          what synk.function(updates=...) takes as it is
    distributed(rule)  -> rule of make_train_function     its gradients read from the flat vector

Imported as part of ``synk.extensions.updates``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import scalar

from synk.extensions.gradients import flat_gradient, listed
from synk.extensions.updates.parts import Updates

INSTEAD = "pass what it returns to synk.function(updates=...), where it may be any graph"


def distributed(rule: Callable[..., Any]) -> Callable[..., Updates]:
    """Return an update rule for `make_train_function` from one that was written for one process.

    As it is, such a rule needs no help: ``synk.function(inputs, loss, updates=rule(loss, params))`` trains on
    any number of ranks with the numbers of one process. This is for what goes around a step: one flat vector
    to all-reduce, parameters that live once, `clipped` and other wrappers, ``fit`` with its checkpoints.

    The rule may compute gradients of the loss, also with terms of the parameters added to it, and do with
    them what it likes. It may neither read the value of the loss, nor the inputs, nor derive gradients again,
    and draw no random numbers: by then the ranks have added up the gradient and nothing else.

    Parameters
    ----------
    rule : callable
        ``rule(loss, params, **options)`` returns a dict or a list of pairs, (shared variable, new value).

    Returns
    -------
    callable
        ``rule(loss, params, **options)``, as those of this module.

    Raises
    ------
    ValueError
        When the rule is called: it does what it may not; the message says what, and where it can be served.
    TypeError
        The rule returns something else.

    See Also
    --------
    synk.extensions.updates.from_gradient : makes a new rule from what one parameter does.

    Examples
    --------
    >>> def descent(loss, params, learning_rate):  # for one process
    ...     return {p: p - learning_rate * g for p, g in zip(params, pytensor.grad(loss, params))}
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(1.0), name="w")
    >>> rule = updates.clipped(updates.distributed(descent), max_norm=1)
    >>> step = train.make_train_function((w * x).mean(), [w], [x], rule, learning_rate=0.1)
    >>> loss = step([1.0, 3.0])  # the gradient is 2
    >>> print(w.get_value().round(4))
    0.9
    """
    name = getattr(rule, "__name__", repr(rule))

    def by_vector(loss: Any, params: Any, **options: Any) -> Updates:
        params = listed(params)
        flat, expression, gradients = flat_gradient(loss, params)
        stand_in = _Loss(name, gradients)(*params)
        pairs = _pairs(name, rule(stand_in, params, **options))
        variables, values = zip(*pairs, strict=True)
        values = _without_marks(values)
        _check(name, loss, stand_in, variables, values)
        return Updates([(flat, expression, "sum")], list(zip(variables, values, strict=True)), flat)

    return by_vector


class _Loss(Op):
    """Stand for the loss in a rule: only its gradients are known, as read from the flat vector."""

    def __init__(self, rule: str, gradients: Sequence[Any]):
        self.rule, self.gradients = rule, gradients

    def make_node(self, *params: Any) -> Apply:
        return Apply(self, list(params), [scalar("loss", dtype=params[0].type.dtype)])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        (g,) = cotangents
        mark = _Gradient(self.rule)
        return [g * mark(param, gradient) for param, gradient in zip(inputs, self.gradients, strict=True)]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        raise NotImplementedError("it stands for a loss while a rule is called, and is not in the result")


class _Gradient(Op):
    """Mark a gradient while a rule is called, to tell that it is derived again."""

    def __init__(self, rule: str):
        self.rule = rule

    def make_node(self, param: Any, gradient: Any) -> Apply:
        return Apply(self, [param, gradient], [gradient.type()])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        raise ValueError(f"{self.rule} derives the gradient again, which is only known by value; {INSTEAD}")

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        raise NotImplementedError("it marks a gradient while a rule is called, and is not in the result")


def _pairs(name: str, made: Any) -> list[tuple[Any, Any]]:
    """Return the updates of a rule as pairs; TypeError if they are something else."""
    if isinstance(made, Updates):
        raise TypeError(f"{name} is a rule of synk.extensions.updates already; use it without distributed")
    if not isinstance(made, Iterable):
        raise TypeError(f"{name} returns {made!r}, no updates; return a dict, or pairs")
    pairs = list(made.items() if isinstance(made, Mapping) else made)
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[0], SharedVariable):
            raise TypeError(f"{name} returns {pair!r}, not a pair; return (shared variable, new value)")
    if not pairs:
        raise TypeError(f"{name} returns no updates; return pairs (shared variable, new value)")
    return [
        (one, one.type.filter_variable(pt.as_tensor(new) if not isinstance(new, Variable) else new))
        for one, new in pairs
    ]


def _without_marks(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return graphs in which gradients stand for their marks, and the number 1 for a 1 in the loss's shape.

    Every gradient begins with such a 1, and the loss, or a sum with it, would seem to be read.
    """
    values = tuple(values)
    while by := _marks(values):  # again, as what stands for a mark may have others
        values = tuple(graph_replace(list(values), by, strict=False))
    return values


def _marks(values: Sequence[Any]) -> dict[Any, Any]:
    """Map each mark to its gradient, and each 1 in the shape of a number to the number 1."""
    return {
        node.outputs[0]: node.inputs[1]
        for node in io_toposort([], list(values))
        if isinstance(node.op, _Gradient) or _fills_a_number(node)
    }


def _fills_a_number(node: Apply) -> bool:
    """Say whether a node is its second input in the shape of its first, and both are 0-d."""
    fills = isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Second)
    return fills and all(one.type.ndim == 0 for one in node.inputs)


def _check(name: str, loss: Any, stand_in: Any, variables: Sequence[Any], values: Sequence[Any]) -> None:
    """Raise ValueError if new values read what is not in the flat vector, or would differ between ranks."""
    read = set(ancestors(values))
    if stand_in in read:
        raise ValueError(f"{name} reads the value of the loss, which a flat vector lacks; {INSTEAD}")
    rows = {one for one in ancestors([loss]) if _is_input(one) and one.type.ndim} & read
    if rows:
        raise ValueError(f"{name} reads {sorted(map(str, rows))}, inputs of the loss; {INSTEAD}")
    if random := sorted(str(one) for one in variables if isinstance(one.type, RandomType)):
        raise ValueError(f"{name} draws from {random}, and each rank would draw its own; {INSTEAD}")


def _is_input(one: Any) -> bool:
    return one.owner is None and not isinstance(one, Constant | SharedVariable) and hasattr(one.type, "ndim")
