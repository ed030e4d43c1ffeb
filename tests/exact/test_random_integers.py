"""Graphs of integers, repeated positions and running sums have NumPy's numbers, by the linker and on ranks.

``PYTHONPATH=tests python tests/support/integers/campaign.py`` compares as many as wanted.
"""

import pytest

from support.integers.campaign import Report, by_linker, chunks, examine, on_ranks

N_RANKS = 3
SEEDS = [(31, number) for number in range(20)]


def examined(build):
    report = Report()
    for graphs in chunks(SEEDS):
        examine(graphs, build, report, build.__name__)
    assert not report.differences, "\n".join(report.differences)
    assert report.graphs == len(SEEDS)
    assert report.results > 5 * len(SEEDS)
    assert sum(report.refusals.values()) < 3, report.refusals


def test_random_graphs_of_integers_have_the_numbers_of_numpy():
    examined(by_linker)


@pytest.mark.slow
@pytest.mark.usefixtures("module_ranks")
def test_random_graphs_of_integers_have_the_numbers_of_numpy_on_ranks():
    examined(on_ranks)
