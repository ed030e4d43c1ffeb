"""Find out whether updates are elementwise along a flat vector, so that each rank can compute a part.

    updates, flat vector -> along -> VectorUpdates: variables laid out in vectors, one rule for all of them
                                  -> NotElementwise: why not

An update rule is written for each parameter; it reads the parameter's piece of the flat vector (`pieces_of`),
the state that belongs to the parameter, and numbers that are the same for all elements. If it is elementwise
and the same for all parameters, it can be computed for any part of the elements, wherever a parameter ends.
Among the numbers may be sums over all elements, such as a norm: each rank adds up its part of them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape
from pytensor.tensor.type import TensorType

from synk.exact.collectives.marks import Whole
from synk.exact.rule_graphs import NotElementwise, Rules, adds_up, constant_index, elementwise_node
from synk.exact.run_values import describe

Pair = tuple[SharedVariable, Variable]
Span = tuple[int, int]  # elements start:stop of the flat vector

TOTAL, WEIGHT = ("total",), ("weight",)  # the keys of these leaves of a rule
SUM = ("sum",)


class VectorPlace(NamedTuple):
    """The place of a variable in a vector: elements from ``start`` on, in C order."""

    variable: SharedVariable
    start: int
    shape: tuple[int, ...]


class VectorUpdates(NamedTuple):
    """Updates as a rule for vectors, in which the updated variables lie one behind the other.

    Attributes
    ----------
    length : int
        The number of elements of each vector: that of the flat vector without its weight.
    places : tuple of tuple of VectorPlace
        The variables of each vector; the first vector may be that of moments, the last that of parameters.
    vectors : tuple of TensorVariable
        An input for any part of each vector before the update.
    total, weight : TensorVariable
        Inputs for the same part of the flat vector, and for its last element, summed over the ranks.
    values : tuple of TensorVariable
        The part of each vector after the update.
    others : tuple of (shared variable, new value)
        Updates that read neither the flat vector nor the vectors: every rank computes them.
    sums : tuple of TensorVariable
        Inputs for sums over all elements of the flat vector, 0-d.
    partial_sums : tuple of TensorVariable
        What a part, ``total`` and ``weight``, adds to each of them.
    """

    length: int
    places: tuple[tuple[VectorPlace, ...], ...]
    vectors: tuple[Any, ...]
    total: Any
    weight: Any
    values: tuple[Any, ...]
    others: tuple[Pair, ...]
    sums: tuple[Any, ...] = ()
    partial_sums: tuple[Any, ...] = ()


def along(updates: Sequence[Pair], flat: SharedVariable) -> VectorUpdates:
    """Return the updates as a rule for vectors.

    Parameters
    ----------
    updates : sequence of (shared variable, new value)
        Graphs in which `whole` of the flat vector stands for its sum over the ranks.
    flat : shared vector
        The last element is the weight.

    Raises
    ------
    NotElementwise
        If the updates are not elementwise, or not the same for all variables.
    """
    length = len(flat.get_value(borrow=True)) - 1
    reading = _Reading(updates, flat, length)
    groups = list(reading.groups().values())
    if not groups:
        raise NotElementwise(f"no update reads the sum of {describe(flat)}")
    _check_covers([group.span for group in groups], length, flat)
    first, *others = groups
    for group in others:
        if group.rules != first.rules or group.dtypes() != first.dtypes():
            one, other = describe(group.variables[0]), describe(first.variables[0])
            raise NotElementwise(f"{one} is updated by another rule than {other}")
    vectors = [TensorType(dtype, (None,))(f"part {k}") for k, dtype in enumerate(first.dtypes())]
    total, weight = TensorType(flat.type.dtype, (None,))("total"), TensorType(flat.type.dtype, ())("weight")
    leaves: dict[Any, Any] = {TOTAL: total, WEIGHT: weight}
    leaves |= {("vector", k): one for k, one in enumerate(vectors)}
    summed, nodes = reading.summed(), list(reading.sums.values())
    partial_sums = [
        node.op(one) for node, one in zip(nodes, reading.rules.build(summed, leaves), strict=True)
    ]
    sums = [node.outputs[0].type(f"sum {k}") for k, node in enumerate(nodes)]
    leaves |= {("sum", k): one for k, one in enumerate(sums)}
    values = reading.rules.build(first.rules, leaves)
    places = [
        tuple(VectorPlace(group.variables[k], group.span[0], _shape(group.variables[k])) for group in groups)
        for k in range(len(vectors))
    ]
    return VectorUpdates(
        length,
        tuple(places),
        tuple(vectors),
        total,
        weight,
        tuple(values),
        tuple(reading.others),
        tuple(sums),
        tuple(partial_sums),
    )


def _shape(variable: SharedVariable) -> tuple[int, ...]:
    return tuple(variable.get_value(borrow=True).shape)


def _check_covers(spans: Sequence[Span], length: int, flat: SharedVariable) -> None:
    """Raise NotElementwise unless the spans follow each other from the first element to the last."""
    end = 0
    for start, stop in sorted(spans):
        if start != end:
            raise NotElementwise(
                f"elements {min(start, end)}:{max(start, end)} of {describe(flat)} are not read once"
            )
        end = stop
    if end != length:
        raise NotElementwise(f"elements {end}:{length} of {describe(flat)} update nothing")


class _Group(NamedTuple):
    """The variables that are updated along one piece of the flat vector, and the numbers of their rules."""

    span: Span
    variables: list[SharedVariable]
    rules: list[int]

    def dtypes(self) -> list[str]:
        return [one.type.dtype for one in self.variables]


class _Reading:
    """The graphs of updates, read from the new values down to the pieces of the flat vector.

    Attributes
    ----------
    rules : Rules
    others : list of (shared variable, new value)
        The updates that read neither the flat vector nor what is updated along it.
    sums : dict of Variable to Apply
        Sums over all elements of the flat vector, each with the node that computes it.
    """

    def __init__(self, updates: Sequence[Pair], flat: SharedVariable, length: int):
        self._flat, self._length = flat, length
        self._new = dict(updates)
        self._spans: dict[Variable, Span] = {}  # pieces of the flat vector
        self._weights: set[Variable] = set()
        self._all: set[Variable] = set()  # all elements of the flat vector
        self.sums: dict[Variable, Apply] = {}
        self._roots: dict[Variable, frozenset[Any]] = {}  # what each variable is computed from: `_roots_of`
        self._read_flat()
        self._along = self._spread()
        self.others = [pair for pair in self._new.items() if pair[0] not in self._along]
        self.rules = Rules()
        self._known: dict[Variable, int] = {}

    def _read_flat(self) -> None:
        """Find the pieces and the weight; other reads of the flat vector need all of its elements."""
        slices: dict[Variable, Span] = {}
        whole: set[Variable] = set()
        everywhere: set[Variable] = set()  # computed element by element from all elements
        for node in io_toposort([], list(self._new.values())):
            read, variable = node.inputs[0] if node.inputs else None, node.outputs[0]
            index = constant_index(node) if read in whole else None
            if isinstance(node.op, Whole) and read is self._flat:
                whole.add(variable)
            elif isinstance(index, slice) and index.indices(self._length + 1)[1] <= self._length:
                slices[variable] = span = index.indices(self._length + 1)[:2]
                if span == (0, self._length):
                    self._all.add(variable)
            elif index in (-1, self._length):
                self._weights.add(variable)
            elif read in slices and isinstance(node.op, Reshape):
                self._spans[variable] = slices[read]
            elif isinstance(node.op, Elemwise) and not (everywhere | self._all).isdisjoint(node.inputs):
                everywhere.add(variable)
            elif adds_up(node) and read in everywhere | self._all:
                self.sums[variable] = node
            elif self._flat in node.inputs or not (whole | everywhere | slices.keys()).isdisjoint(
                node.inputs
            ):
                raise NotElementwise(f"{node.op} needs all elements of {describe(self._flat)}")
            roots = frozenset().union(*(self._roots_of(one) for one in node.inputs))
            self._roots |= dict.fromkeys(node.outputs, roots)

    def _roots_of(self, variable: Variable) -> frozenset[Any]:
        """Return the pieces, by their span, the weight and the updated variables that a variable reads."""
        if variable in self._spans:
            return frozenset([self._spans[variable]])
        if variable in self._weights:
            return frozenset([WEIGHT])
        if variable in self.sums:
            return frozenset([SUM])
        if variable in self._new:
            return frozenset([variable])
        return self._roots.get(variable, frozenset())

    def _spread(self) -> dict[SharedVariable, Span]:
        """Return the piece of each updated variable that is updated along one, or reads one that is."""
        along: dict[SharedVariable, Span] = {}
        read = {variable: {variable} | self._roots_of(value) for variable, value in self._new.items()}
        pieces = set(self._spans.values())
        while True:
            before = len(along)
            for variable, roots in read.items():
                spans = pieces & roots
                spans |= {along[root] for root in roots if root in along}
                if len(spans) > 1:
                    raise NotElementwise(f"{describe(variable)} is computed from several parameters")
                along |= dict.fromkeys([variable], *spans) if spans else {}
            if len(along) == before:
                return along

    def groups(self) -> dict[Span, _Group]:
        """Return the updated variables by the piece that they are updated along."""
        groups: dict[Span, _Group] = {}
        for variable, span in self._along.items():
            if prod(_shape(variable)) != span[1] - span[0]:
                raise NotElementwise(f"{describe(variable)} has not as many elements as its gradient")
            if variable.type.dtype != self._new[variable].type.dtype:
                raise NotElementwise(f"{describe(variable)} gets a value of another dtype")
            groups.setdefault(span, _Group(span, [], [])).variables.append(variable)
        for group in groups.values():
            roles = {variable: k for k, variable in enumerate(group.variables)}
            group.rules.extend(self._rule(self._new[variable], roles) for variable in group.variables)
        return groups

    def summed(self) -> list[int]:
        """Return the numbers of the rules whose values, for all elements, are added up."""
        for node in self.sums.values():
            roots = self._roots_of(node.inputs[0])
            if not all(root == WEIGHT or (root in self._new and root not in self._along) for root in roots):
                raise NotElementwise(f"{node.op} adds up what depends on other sums, or on variables")
            if node.outputs[0].type.dtype != self._flat.type.dtype:
                raise NotElementwise(f"{node.op} has another dtype than {describe(self._flat)}")
        return [self._rule(node.inputs[0], {}) for node in self.sums.values()]

    def _rule(self, value: Variable, roles: Mapping[SharedVariable, int]) -> int:
        """Return the number of a new value's rule; ``roles`` are the positions of the group's variables."""
        known, waiting = self._known, [value]
        while waiting:
            variable = waiting[-1]
            if variable not in known and (leaf := self._leaf(variable, roles)) is not None:
                known[variable] = leaf
            if variable in known:
                waiting.pop()
                continue
            node = elementwise_node(variable)
            missing = [one for one in node.inputs if one not in known]
            waiting += missing
            if not missing:
                read = [known[one] for one in node.inputs]
                is_elemwise = isinstance(node.op, Elemwise)
                known[variable] = self.rules.number((node.op, 0, *read)) if is_elemwise else read[0]
        return known[value]

    def _leaf(self, variable: Variable, roles: Mapping[SharedVariable, int]) -> int | None:
        """Return the number of a variable that is read as it is; None if it is computed from others."""
        if variable in self._spans or variable in self._all:
            return self.rules.number(TOTAL)
        if variable in self._weights:
            return self.rules.number(WEIGHT)
        if variable in self.sums:
            return self.rules.number(("sum", list(self.sums).index(variable)))
        if variable in roles:
            return self.rules.number(("vector", roles[variable]))
        if variable.type.ndim == 0 and self._is_number(variable):
            return self.rules.number_of(variable)
        return None

    def _is_number(self, variable: Variable) -> bool:
        """Tell whether a 0-d variable is the same for all elements of the vectors, and before the update."""
        return all(root in self._new and root not in self._along for root in self._roots_of(variable))
