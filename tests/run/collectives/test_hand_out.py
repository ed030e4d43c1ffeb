"""Arrays that are handed out: what the ranks of a machine read of them."""

import pytest

from synk.run.collectives.hand_out import AssignStep
from synk.values.messages import ArrayRef, Part, Readers, RowSpan

VALUES, INDICES = ArrayRef(1, "<f8", (10, 2)), ArrayRef(2, "<i8", (6,))
ALL, OTHER = RowSpan(0, 10, False), RowSpan(2, 5, False)


def parts(spans, arrays=(VALUES,), indices=None, ranks=range(1, 3)):
    step = AssignStep((1,) * len(arrays), arrays, spans, indices)
    return list(step.parts(Readers(ranks, 3, (0, 0))))


@pytest.mark.parametrize(
    ("spans", "rows"),
    [
        ((ALL, RowSpan(3, 6, False), RowSpan(6, 9, False)), (3, 9)),  # scattered
        ((ALL, ALL, ALL), (0, 10)),  # the same for all
        ((None, None, OTHER), (2, 5)),  # for one
        ((ALL, RowSpan(0, 3, True), OTHER), None),  # picked: any
    ],
)
def test_ranks_read_their_rows(spans, rows):
    assert parts((spans,)) == [Part(VALUES, rows)]


def test_ranks_read_nothing_that_is_for_others_or_written_already():
    assert parts(((ALL, None, None),)) == []
    assert parts(((ALL, ALL, ALL),), arrays=(None,)) == []


def test_lists_of_rows_are_read():
    picked = RowSpan(0, 6, True)
    assert parts(((picked, picked, picked),), indices=INDICES) == [Part(VALUES), Part(INDICES)]
