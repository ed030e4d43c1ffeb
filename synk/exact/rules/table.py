"""The table of rules: what an Op makes of values that differ between ranks.

    @relate.register(Softmax)
    def softmax(op, node, given):
        \"\"\"Row by row, unless it goes along the rows.\"\"\"
        if isinstance(given[0], Rows) and op.axis not in (None, given[0].axis):
            return given, given

A rule is asked with the node of this rank, whose inputs have the relations ``given``, at least one of which
is not `SAME`. It returns the relations that the inputs must have and those that the outputs have then; None
says that all inputs must be `SAME`, as is right for every Op, and all that is known of one without a rule.
`Instead` gives an equivalent graph, whose nodes are asked in turn; `Rebuilt` makes a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Variable

from synk.exact.rules.relations import Relation

Relations = Sequence[Any]  # of classes of `Relation`, told apart by rules


class Instead(NamedTuple):
    """Variables to compute in the place of a node's outputs, made of its inputs."""

    outputs: Sequence[Variable]


class Rebuilt(NamedTuple):
    """A way to make the node of a rank where it is not the same Op on other inputs."""

    inputs: Sequence[tuple[Variable, Relation | None]]  # of the node; what they must be, None for as they are
    outputs: Sequence[Relation]
    build: Callable[[Sequence[Variable]], Sequence[Variable]]  # of those inputs


Outcome = tuple[Relations, Relations] | Instead | Rebuilt | None


@singledispatch
def relate(op: Any, node: Apply, given: Relations) -> Outcome:
    """Return the relations that inputs must have, and those that outputs have then."""
    return None
