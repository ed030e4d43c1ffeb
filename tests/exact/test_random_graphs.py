"""Random graphs have one process's numbers on any ranks, or are refused when they are built.

``make test-all`` compares more; ``PYTHONPATH=tests python tests/support/exact/graphs.py`` as many as wanted.
"""

import pytest

from support.exact.comparison import Report, examined
from support.slow import slow

FEW, MANY, A_BLOCK = 120, 1500, 30

# PyTensor's own Ops, which are the reference, warn of a BLAS that they do not find.
pytestmark = pytest.mark.filterwarnings("ignore")


def report_of(seeds):
    report = Report()
    for seed in seeds:
        report.add(examined(seed))
    assert not report.differences, "\n".join(report.differences)
    return report


@pytest.mark.parametrize("first", [0, *map(slow, range(A_BLOCK, FEW, A_BLOCK))])
def test_random_graphs_have_the_numbers_of_one_process(first):
    report = report_of((0, number) for number in range(first, first + A_BLOCK))
    assert report.compared > 5 * A_BLOCK


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 1 + MANY // 300))
def test_few_random_graphs_are_refused_or_need_whole_inputs(seed):
    report = report_of((seed, number) for number in range(300))
    assert len(report.kinds) >= 40
    assert sum(report.refusals.values()) < 30
    assert report.whole < 30
