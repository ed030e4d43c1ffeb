"""Random graphs, as regions and in Python: the same numbers, or the same kind of error."""

import pytest

from support.regions.fuzz import compared
from support.slow import slow


def reported(numbers):
    report = [*compared([(17, number) for number in numbers])][-1]
    assert report.differences == []
    return report


@pytest.mark.parametrize("count", [6, slow(80)])
def test_small_graphs_of_all_kinds(count):
    report = reported(range(count))
    assert report.with_regions > count * 3 // 4
    assert report.gave_up < report.calls / 5


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 11_000, 1000))
def test_many_small_graphs(first):
    reported(range(first, first + 1000))
