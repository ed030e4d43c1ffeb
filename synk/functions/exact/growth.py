"""Tell how the parts that ranks have of a value depend on how many rows each rank has.

    x.sum(axis=0)             {0}    the ranks' parts, from their own rows, add up
    x.mean(axis=0)            {-1}   divided by a number of rows: their average, weighted by rows, is the mean
    x.mean() + (w**2).sum()   {-1}   what all ranks have averages to itself
    x.sum() + (w**2).sum()    {0, -1}
    pt.sqrt((x**2).mean())    apart: no operation makes it of what each rank computes from its rows

It is read off a graph in which ranks meet (`completion`): a power of ``total_rows`` there is one of each
rank's rows where ranks do not meet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc, ExtractDiag, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from synk.arrays.variables import leads, total_rows
from synk.compile.compat import AdvancedSubtensor1
from synk.compile.graphs.serialize import topological
from synk.compile.rows.relations import SAME
from synk.functions.exact.completion import Completion
from synk.ops.collective_op import CollectiveOp
from synk.ops.collectives import AllReduce
from synk.ops.own_rows import OwnRows, SomeRows

# As the Op has them with its first input, what else it reads are lengths and places.
PASSING = (
    AdvancedSubtensor,
    AdvancedSubtensor1,
    Alloc,
    DimShuffle,
    ExtractDiag,
    OwnRows,
    Reshape,
    ScalarFromTensor,
    SomeRows,
    SpecifyShape,
    Subtensor,
    TensorFromScalar,
)


class Growth(NamedTuple):
    """How a value grows with the number of rows.

    ``powers`` of that number, one for each of its terms, are None where they are not known. ``total`` says
    that a sum over all ranks is in it, in a linear way; ``apart``, that one is in it otherwise, so that
    what ranks compute from their own rows is something else.
    """

    powers: frozenset[int] | None
    total: bool = False
    apart: bool = False


PLAIN = Growth(frozenset({0}))
UNKNOWN = Growth(None)


def growth_of(
    results: Sequence[Variable], completion: Completion, written: Iterable[Variable]
) -> list[Growth]:
    """Return the growth of results of a completed graph; ``written`` are those it was completed from."""
    own = {node.op for node in topological(written) if isinstance(node.op, CollectiveOp)}
    known: dict[Variable, Growth] = {total_rows: Growth(frozenset({1}))}
    for node in topological(results):
        if isinstance(node.op, CollectiveOp):
            made = [PLAIN if node.op in own else inserted(node, known)] * len(node.outputs)
        else:
            found = Found(node, known, completion).growth()
            made = [found] * len(node.outputs)
        known.update(zip(node.outputs, made, strict=True))
    return [known.get(result, PLAIN) for result in results]


def inserted(node: Apply, known: dict[Variable, Growth]) -> Growth:
    """Return the growth of what all ranks' parts come to."""
    if not isinstance(node.op, AllReduce) or node.op.op != "sum":
        return UNKNOWN
    return known.get(node.inputs[0], PLAIN)._replace(total=True)


class Found:
    """The growth of a node's outputs, found from that of its inputs."""

    def __init__(self, node: Apply, known: dict[Variable, Growth], completion: Completion):
        self._node, self._known, self._completion = node, known, completion

    def _of(self, variable: Variable) -> Growth:
        return self._known.get(variable, PLAIN)

    def growth(self) -> Growth:
        """Return it."""
        op, inputs = self._node.op, self._node.inputs
        if isinstance(op, Elemwise):
            return self._elementwise(op.scalar_op)
        if isinstance(op, Subtensor) and (element := element_of(self._node)) is not None:
            return self._of(element)
        if isinstance(op, CAReduce):
            return self._reduced(op)
        if isinstance(op, Dot) or (isinstance(op, Blockwise) and isinstance(op.core_op, Dot)):
            return self._product(inputs)
        if isinstance(op, PASSING):
            return self._of(inputs[0])
        if isinstance(op, Join | MakeVector):
            return self._terms(inputs[1:] if isinstance(op, Join) and inputs[0].type.ndim == 0 else inputs)
        growths = [*map(self._of, inputs)]
        apart = any(growth.apart for growth in growths)
        plain = all(growth == PLAIN for growth in growths)
        return PLAIN if plain else UNKNOWN._replace(apart=apart)

    def _elementwise(self, op: Any) -> Growth:
        inputs = self._node.inputs
        if isinstance(op, ps.Add | ps.Sub):
            return self._terms(inputs)
        if isinstance(op, ps.Neg | ps.Cast | ps.Identity):
            return self._of(inputs[0])
        if isinstance(op, ps.Second):
            return self._of(inputs[1])
        if isinstance(op, ps.Mul):
            return self._product(inputs)
        if isinstance(op, ps.TrueDiv):
            return self._quotient(*inputs)
        if isinstance(op, ps.Switch):
            condition, *values = inputs
            if condition_of(condition) is leads:
                # What all ranks have counts once, as a sum over rows divided by their number does.
                return powers_changed(self._of(values[0]), [-1])
            chosen = self._terms(values)
            return chosen._replace(apart=chosen.apart or self._departs([condition]))
        return self._other(inputs)

    def _reduced(self, op: CAReduce) -> Growth:
        (value,) = self._node.inputs
        if isinstance(op.scalar_op, ps.Add):
            return self._of(value)
        if isinstance(op.scalar_op, ps.Mul) and value.owner and isinstance(value.owner.op, MakeVector):
            return self._product(value.owner.inputs)
        return self._other([value])

    def _terms(self, inputs: Sequence[Variable]) -> Growth:
        # Zero has any power.
        growths = [self._of(one) for one in inputs if not is_zero(one)] or [PLAIN]
        powers = [growth.powers for growth in growths]
        return Growth(
            None if None in powers else frozenset().union(*powers),  # type: ignore[arg-type]
            total=any(growth.total for growth in growths),
            apart=any(growth.apart for growth in growths),
        )

    def _product(self, inputs: Sequence[Variable]) -> Growth:
        growths = [*map(self._of, inputs)]
        by_rows = [self._depends(one) for one in inputs]
        total = any(growth.total for growth in growths)
        product = reduce(lambda one, other: powers_changed(one, other.powers), growths)
        apart = any(growth.apart for growth in growths) or (total and sum(by_rows) > 1)
        return Growth(product.powers, total, apart)

    def _quotient(self, above: Variable, below: Variable) -> Growth:
        growth, divisor = self._of(above), self._of(below)
        single = divisor.powers is not None and len(divisor.powers) == 1
        powers = powers_changed(growth, [-power for power in divisor.powers or ()] if single else None).powers
        apart = growth.apart or divisor.apart or divisor.total or (growth.total and self._depends(below))
        return Growth(powers, growth.total, apart)

    def _other(self, inputs: Sequence[Variable]) -> Growth:
        """Return the growth of what is not linear in any input."""
        plain = all(self._of(one).powers == {0} for one in inputs)
        return (PLAIN if plain else UNKNOWN)._replace(apart=self._departs(inputs))

    def _departs(self, inputs: Sequence[Variable]) -> bool:
        return any(self._of(one).apart or self._of(one).total for one in inputs)

    def _depends(self, variable: Variable) -> bool:
        """Tell whether a value depends on what the rows hold."""
        return self._of(variable).total or self._completion.local(variable).relation != SAME


def powers_changed(growth: Growth, by: Collection[int] | None) -> Growth:
    """Return the growth of a value times another, of which the powers are given."""
    if growth.powers is None or by is None:
        return growth._replace(powers=None)
    return growth._replace(powers=frozenset(one + other for one in growth.powers for other in by))


def element_of(node: Apply) -> Variable | None:
    """Return which element of a vector of single values a node takes, if that can be told."""
    vector, *places = node.inputs
    while vector.owner is not None and is_cast(vector.owner.op):
        (vector,) = vector.owner.inputs
    if vector.owner is None or not isinstance(vector.owner.op, MakeVector) or len(places) != 1:
        return None
    (place,) = places
    return vector.owner.inputs[int(place.data)] if isinstance(place, Constant) else None


def is_cast(op: Any) -> bool:
    """Tell whether an Op converts to another dtype."""
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.Cast)


def is_zero(variable: Variable) -> bool:
    """Tell whether a variable is 0 everywhere, by a constant."""
    return isinstance(variable, Constant) and bool((variable.data == 0).all())


def condition_of(variable: Variable) -> Variable:
    """Return what a condition is broadcast from."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        (variable,) = variable.owner.inputs
    return variable
