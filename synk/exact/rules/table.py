"""The table of rules: for each Op, the relations of its outputs if its inputs differ between ranks.

    @relate.register(Softmax)
    def softmax(op, node, given):
        \"\"\"Let rows stay rows, unless the softmax is along their axis.\"\"\"
        if isinstance(given[0], Rows) and op.axis not in (None, given[0].axis):
            return given, given

A rule is called with the node of this rank, whose inputs have the relations ``given``, at least one of which
is not `SAME`. It returns the relations that the inputs must have, and those that the outputs have then. None
means that all inputs must be `SAME`, and the outputs are, too; that is right for every Op, and holds for an
Op without a rule. `Instead` replaces the node by an equivalent graph, for whose nodes the rules are asked in
turn; `Rebuilt` has a function that builds this rank's node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable

from synk.exact.rules.relations import Relation

Relations = Sequence[Any]  # of classes of `Relation`, told apart by rules


class Instead(NamedTuple):
    """A rule's outcome: variables, computed from the node's inputs, that replace the node's outputs."""

    outputs: Sequence[Variable]


class Rebuilt(NamedTuple):
    """A rule's outcome: a function that builds the outputs of this rank's node, and the relations of these.

    It serves where the rank's node is not the same Op on converted inputs.
    """

    inputs: Sequence[tuple[Variable, Relation | None]]  # each must have the relation; None: as it is
    outputs: Sequence[Relation]
    build: Callable[[Sequence[Variable]], Sequence[Variable]]  # returns the outputs for the converted inputs


Outcome = tuple[Relations, Relations] | Instead | Rebuilt | None


@singledispatch
def relate(op: Any, node: Apply, given: Relations) -> Outcome:
    """Return the outcome of an Op's rule; see this module. Without a rule, all inputs must be `SAME`."""
    return None
