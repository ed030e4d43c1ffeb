"""Graphs that are walked by rules, which anyone may write."""

import pytensor.tensor as pt
import pytest
from pytensor.graph import Apply, Op

from synk.exact.completion import Completion
from synk.exact.rules import SAME, SUM, Rows, relate


class Halves(Op):
    """Two halves of rows."""

    def make_node(self, x, y):
        return Apply(self, [x, y], [x.type(), x.type()])

    def perform(self, node, inputs, outputs):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("said", "counts"), [(([Rows(0)], [SUM, SUM]), "(1, 2)"), (([Rows(0)] * 2, [SUM]), "(2, 1)")]
)
def test_a_rule_that_forgets_a_variable_is_named(said, counts):
    @relate.register(Halves)
    def forgetful(op, node, given):
        return said

    x, y = pt.matrices("x", "y")
    named = rf"test_completion.*forgetful returns .* \{counts[:-1]}\).* of Halves.* which has \(2, 2\)"
    with pytest.raises(ValueError, match=named):
        Completion({x: Rows(0)}).walk(Halves()(x, y))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_part_that_is_needed_whole_is_completed_directly_after_its_node(at_once):
    x = pt.matrix("x")
    total = x.sum(axis=0)
    later = total * 2
    completion = Completion({x: Rows(0)}, {total} if at_once else ())
    completion.walk([later])
    assert completion.local(later).relation == (SAME if at_once else SUM)
