"""The graph of one step of a loop, and how relations of a step's values come with those of all steps'.

    relations of what a step reads -> Inside -> of what it writes; or Needed: one process's value of an input

Rows along an axis of what a step sees stay rows. Nothing is gathered inside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from synk.exact.completion import Completion
from synk.exact.local_values import Local
from synk.exact.rules.relations import (
    EACH,
    SAME,
    Count,
    Drawn,
    Own,
    Partial,
    Relation,
    Rows,
    Stream,
    as_rows,
)
from synk.exact.run_values import n_rows


class Impossible(Exception):
    """A step needs more of other ranks than can be had inside of a loop."""


class Needed(Exception):
    """A step needs one process's value of the inputs ``args[0]``, or of what it makes of them alone."""


class Inside(Completion):
    """The graph of a step.

    Of the inputs ``passed``, which are no states, one process's value is an input, too, where it is needed.
    """

    def __init__(
        self,
        known: Sequence[Local],
        originals: Sequence[Variable],
        passed: Collection[Variable],
        at_once: Collection[Variable],
    ):
        super().__init__({n_rows: Count(EACH)}, at_once)
        self._parts = {local.value for local in known if isinstance(local.relation, Partial)}
        # What ranks have in parts before a step is not completed for the sake of what a step completes.
        self._depth.update(dict.fromkeys(self._parts, inf))
        self._inputs = {local.value for local in known}
        self._passed = passed
        self._local.update(zip(originals, known, strict=True))
        self._local.update((local.value, local) for local in known)
        self.whole: dict[Variable, Variable] = {}

    def _completed(self, value: Variable, given: Relation) -> Variable:
        if value in self._inputs and not isinstance(given, Own):
            return self._whole(value)
        if isinstance(given, Own):
            raise Impossible
        if isinstance(given, Partial) and self._depth.get(value) == inf:
            raise Needed(self._parts & set(ancestors([value])))
        return super()._completed(value, given)

    def _meeting(self, value: Variable, given: Rows) -> Variable:
        raise Impossible

    def _of_all_ranks(self, value: Variable) -> Variable:
        return self._whole(value) if value in self._inputs else super()._of_all_ranks(value)

    def _whole(self, value: Variable) -> Variable:
        if value not in self._passed:
            raise Needed({value})
        return self.whole.setdefault(value, value.type())


def of_any_length(variable: Variable, relation: Relation) -> Variable:
    """Return an input like ``variable``, with any number of rows."""
    if not isinstance(relation, Rows) or variable.type.shape[relation.axis] is None:
        return variable
    shape = [None if axis == relation.axis else n for axis, n in enumerate(variable.type.shape)]
    return TensorType(variable.type.dtype, shape)()


def whole_steps(relation: Relation) -> Relation:
    """Return the relation of which a step sees an element: where rows are steps, all ranks go through all."""
    return (
        relation if isinstance(relation, Partial | Own | Drawn) or getattr(relation, "axis", 0) > 0 else SAME
    )


def within(relation: Relation) -> Relation:
    """Return the relation of one step's element of what has ``relation``."""
    return Rows(relation.axis - 1, relation.length) if isinstance(relation, Rows) else relation


def outside(relation: Relation) -> Relation:
    """Return the relation of all steps' values together."""
    rows = as_rows(relation)
    return Rows(rows.axis + 1, rows.length) if isinstance(rows, Rows) else as_it_is(relation)


def as_it_is(relation: Relation) -> Relation:
    """Return the relation of a value, of a number of rows that of all ranks' number."""
    return relation if isinstance(relation, Partial | Own | Drawn | Rows | Stream) else SAME
