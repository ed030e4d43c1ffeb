"""The graph of one step of a loop (Scan) on one rank, and the relations of its values.

    relations of a step's inputs -> Inside -> relations of its outputs, or Needed: inputs to complete first

Rows along an axis of a step's inputs stay rows, and no rows are gathered inside the loop. Sequences and
traces have one more axis outside, the steps: `within` and `outside` convert relations accordingly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf

from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from synk.exact.collectives.collective_op import any_length
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
    """A step needs rows of other ranks, or another value that cannot be had inside of a loop."""


class Needed(Exception):
    """A step needs one process's value of the inputs in ``args[0]``, or of a value computed from them."""


class Inside(Completion):
    """The graph of one step on one rank.

    ``known`` are this rank's values for the step's inputs ``originals``. If the step needs one process's
    value of an input in ``passed`` (a sequence or constant), it becomes another input of the step, listed in
    ``complete_inputs``.
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
        # Parts among the inputs count as known after any collective, so a node does not complete other parts
        # for their sake: see `_waits_for_later_collective`.
        self._depth.update(dict.fromkeys(self._parts, inf))
        self._inputs = {local.value for local in known}
        self._passed = passed
        self._local.update(zip(originals, known, strict=True))
        self._local.update((local.value, local) for local in known)
        self.complete_inputs: dict[Variable, Variable] = {}

    def _completed(self, value: Variable, given: Relation) -> Variable:
        if value in self._inputs and not isinstance(given, Own):
            return self._complete_input(value)
        if isinstance(given, Own):
            raise Impossible
        if isinstance(given, Partial) and self._depth.get(value) == inf:
            raise Needed(self._parts & set(ancestors([value])))
        return super()._completed(value, given)

    def _meeting(self, value: Variable, given: Rows) -> Variable:
        raise Impossible

    def _of_all_ranks(self, value: Variable) -> Variable:
        return self._complete_input(value) if value in self._inputs else super()._of_all_ranks(value)

    def _complete_input(self, value: Variable) -> Variable:
        """Return the input that holds one process's value of the input ``value``."""
        if value not in self._passed:
            raise Needed({value})
        return self.complete_inputs.setdefault(value, value.type())


def of_any_length(variable: Variable, relation: Relation) -> Variable:
    """Return a step's input like ``variable``, whose type allows any number of rows along their axis."""
    if not isinstance(relation, Rows) or variable.type.shape[relation.axis] is None:
        return variable
    return TensorType(variable.type.dtype, any_length(variable, relation.axis))()


def whole_steps(relation: Relation) -> Relation:
    """Return the relation that a sequence must have before the loop, given the relation that it has.

    If its rows are the steps themselves, or it is a number of rows, every rank needs all of it: `SAME`.
    """
    return (
        relation if isinstance(relation, Partial | Own | Drawn) or getattr(relation, "axis", 0) > 0 else SAME
    )


def within(relation: Relation) -> Relation:
    """Return the relation of one step's element of a sequence or trace that has ``relation``."""
    return Rows(relation.axis - 1, relation.length) if isinstance(relation, Rows) else relation


def outside(relation: Relation) -> Relation:
    """Return the relation of the trace of all steps' values, if one step's value has ``relation``."""
    rows = as_rows(relation)
    return Rows(rows.axis + 1, rows.length) if isinstance(rows, Rows) else as_it_is(relation)


def as_it_is(relation: Relation) -> Relation:
    """Return ``relation``, but `SAME` for a number of rows: a loop returns the number of all ranks' rows."""
    return relation if isinstance(relation, Partial | Own | Drawn | Rows | Stream) else SAME
