"""Find by which power of the number of rows a value grows, to tell sums over rows from means.

    x, w, x.mean(axis=0)         {0}
    x.sum(axis=0), x.shape[0]    {1}
    x.sum() + (w**2).sum()       {0, 1}  one for each term
    pt.sqrt((x**2).mean())       nonlinear: no operation combines the ranks' values to one process's value

The growth is read off the graph of one rank (`completion`): there a collective marks each place where an Op
needs the sum over all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import pytensor.scalar.basic as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Alloc, ExtractDiag, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from synk.compile.compat import AdvancedSubtensor1, join_pieces
from synk.compile.programs.graphs.serialize import topological
from synk.exact.collectives.collective_op import has_collectives
from synk.exact.collectives.collectives import AllReduceOp
from synk.exact.collectives.own_rows import HasRows, OwnRows
from synk.exact.completion import Completion
from synk.exact.local_values import is_filled_with
from synk.exact.rules.relations import SAME, SUM, Count, Rows, selected
from synk.exact.run_values import total_rows

# Ops whose result grows as their first input does; their other inputs are lengths and indices.
PASSING = (
    AdvancedSubtensor,
    AdvancedSubtensor1,
    Alloc,
    DimShuffle,
    ExtractDiag,
    OwnRows,
    Reshape,
    ScalarFromTensor,
    HasRows,
    SpecifyShape,
    Subtensor,
    TensorFromScalar,
    ps.Cast,
    ps.Identity,
    ps.Neg,
)


class Growth(NamedTuple):
    """The growth of a value with the number of rows.

    A value that depends on a sum over all rows in a nonlinear way cannot be combined from the values that
    ranks compute with sums over their own rows.
    """

    degrees: frozenset[int] | None  # the power of the number of rows in each term; None if they are unknown
    total: bool = False  # whether the value depends linearly on a sum over all rows
    nonlinear: bool = False  # whether it depends on such a sum in another way


PLAIN, OF_SUM = Growth(frozenset({0})), Growth(frozenset({1}))
UNKNOWN, NONLINEAR = Growth(None), Growth(None, nonlinear=True)


def growth_of(
    results: Sequence[Variable], completion: Completion, written: Iterable[Variable]
) -> list[Growth]:
    """Return the growth of each of ``results``, of a completed graph.

    ``completion`` has made the graph from the user's; ``written`` are the results in that one.
    """
    found = Growths(completion, written)
    for node in topological(results):
        found.add(node)
    return [*map(found.of, results)]


class Growths:
    """The growth of variables, found node by node from that of the inputs."""

    def __init__(self, completion: Completion, written: Iterable[Variable]):
        self._relation = completion.relation
        self._known = {total_rows: OF_SUM}
        for variable in ancestors(written):
            value, relation = completion.local(variable)
            if isinstance(relation, Count):
                self._known[value] = OF_SUM
                if not selected(relation):  # else the number of all rows is itself a sum over ranks
                    self._known[completion.wanted(variable, SAME)] = OF_SUM

    def of(self, variable: Variable) -> Growth:
        """Return the growth of a variable; if `add` has not found it, the one that its relation implies."""
        return self._known.get(variable, OF_SUM if self._relation(variable) == SUM else PLAIN)

    def add(self, node: Apply) -> None:
        """Find the growth of a node's outputs; a sum over rows is of one degree more than its input."""
        growth = self._found(node)
        of_rows = any(isinstance(self._relation(one), Rows) for one in node.inputs)
        for variable in node.outputs:
            summed = of_rows and self._relation(variable) == SUM
            self._known.setdefault(variable, product([growth, OF_SUM]) if summed else growth)

    def _found(self, node: Apply) -> Growth:
        op, inputs, given = node.op, node.inputs, [*map(self.of, node.inputs)]
        kind = op.scalar_op if isinstance(op, Elemwise) else op.core_op if isinstance(op, Blockwise) else op
        if isinstance(kind, PASSING) or (isinstance(op, CAReduce) and isinstance(op.scalar_op, ps.Add)):
            return given[0]
        if isinstance(kind, ps.Second):
            return given[1]
        if isinstance(op, Shape | Shape_i):
            return PLAIN  # lengths that are numbers of rows are known from the beginning
        if any(one.nonlinear for one in given):
            return NONLINEAR
        if has_collectives(op):
            of_sum = isinstance(op, AllReduceOp) and op.op == "sum"
            return given[0]._replace(total=True) if of_sum else UNKNOWN
        total = any(one.total for one in given)
        if isinstance(kind, ps.Mul | Dot):
            return NONLINEAR if total and sum(map(self._by_rows, inputs)) > 1 else product(given)
        if isinstance(kind, ps.TrueDiv):
            nonlinear = given[1].total or (total and self._by_rows(inputs[1]))
            return NONLINEAR if nonlinear else product([given[0], inverse(given[1])])
        if isinstance(kind, ps.Switch) and not given[0].total:
            return self._terms(inputs[1:])
        if isinstance(kind, ps.Add | ps.Sub | MakeVector | Join):
            return self._terms(join_pieces(node)[1] if isinstance(op, Join) else inputs)
        if total and isinstance(op, Elemwise | CAReduce):
            return NONLINEAR
        parts = any(self._relation(one) == SUM for one in inputs)
        return PLAIN if all(one == PLAIN for one in given) and not parts else UNKNOWN

    def _terms(self, inputs: Sequence[Variable]) -> Growth:
        # Zero is of any degree.
        given = [self.of(one) for one in inputs if not is_filled_with(one, 0)] or [PLAIN]
        degrees = [one.degrees or frozenset() for one in given]
        known = all(one.degrees is not None for one in given)
        return Growth(frozenset().union(*degrees) if known else None, any(one.total for one in given))

    def _by_rows(self, variable: Variable) -> bool:
        """Tell whether a value depends on the values in the rows."""
        return self.of(variable).total or self._relation(variable) != SAME


def product(growths: Collection[Growth]) -> Growth:
    """Return the growth of a product of values with the given growths; at most one may depend on a sum."""

    def degrees(one: frozenset[int] | None, other: frozenset[int] | None) -> frozenset[int] | None:
        return None if one is None or other is None else frozenset(p + q for p in one for q in other)

    return Growth(
        reduce(degrees, [one.degrees for one in growths]),
        any(one.total for one in growths),
        any(one.nonlinear for one in growths),
    )


def inverse(growth: Growth) -> Growth:
    """Return the growth of the reciprocal of a value, unknown if the value has terms of different degrees."""
    single = growth.degrees is not None and len(growth.degrees) == 1
    return Growth(frozenset(-degree for degree in growth.degrees or ()) if single else None)
