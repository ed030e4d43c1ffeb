"""Choose what is kept of chains of several lengths."""

import sys

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

from synk.extensions.pymc.chains import Progress, Report
from synk.extensions.pymc.record import Record, longest


def report(chain, start, stop, n_tune=2, done=False):
    """Return a report of draws ``start:stop``, of which the first ones are the warm-up's."""
    draws = np.arange(start, stop)
    points = np.stack([draws + 100.0 * chain, -draws], axis=1)
    return Report(chain, Progress(stop), done, points, {"tuning": draws < n_tune, "depth": draws})


@pytest.mark.parametrize(
    ("lengths", "length"), [([], 0), ([5], 5), ([5, 5, 1], 5), ([10, 4], 10), ([10, 6], 6), ([3, 3, 9], 3)]
)
def test_the_length_is_kept_that_keeps_most_draws(lengths, length):
    assert longest(lengths) == length


def test_draws_come_in_parts_and_are_split_at_the_end_of_the_warm_up():
    record = Record(2, 2)
    record.add([report(0, 0, 1), report(1, 0, 3)])
    assert record.known() == {0: 1, 1: 3}
    assert not record.is_done()
    record.add([report(0, 1, 6, done=True), report(1, 3, 6, done=True)])
    assert record.is_done()
    assert [one.finished_draws for one in record.progress] == [6, 6]
    drawn, warmup = record.kept(tuning=False), record.kept(tuning=True)
    assert drawn.chains == [0, 1]
    assert drawn.points.shape == (2, 4, 2)
    assert drawn.points[1, :, 0].tolist() == [102, 103, 104, 105]
    assert drawn.stats["depth"].tolist() == [[2, 3, 4, 5]] * 2
    assert not drawn.stats["tuning"].any()
    assert warmup.points[0, :, 1].tolist() == [0, -1]


def test_chains_that_were_cut_off_are_as_long_as_the_others_or_left_out():
    record = Record(3, 2)
    record.add([report(0, 0, 12), report(1, 0, 10), report(2, 0, 3)])
    drawn = record.kept(tuning=False)
    assert drawn.chains == [0, 1]
    assert drawn.points.shape == (2, 8, 2)


def test_nothing_is_kept_before_the_end_of_the_warm_up():
    record = Record(2, 2)
    assert record.kept(tuning=False).chains == []
    record.add([report(0, 0, 2)])
    assert record.kept(tuning=False).chains == []


def test_the_warm_up_is_that_of_the_chains_whose_draws_are_kept():
    record = Record(3, 2)
    record.add([report(0, 0, 12), report(1, 0, 1), report(2, 0, 12)])
    drawn, warmup = record.with_warmup()
    assert drawn.chains == warmup.chains == [0, 2]
    assert (drawn.points.shape, warmup.points.shape) == ((2, 10, 2), (2, 2, 2))


def test_a_warm_up_is_kept_that_no_draws_have_followed():
    record = Record(3, 2)
    record.add([report(0, 0, 5, n_tune=9), report(1, 0, 4, n_tune=9)])
    drawn, warmup = record.with_warmup()
    assert drawn.chains == warmup.chains == [0, 1]
    assert (drawn.points.shape, warmup.points.shape) == ((2, 0, 2), (2, 4, 2))
    assert drawn.stats["depth"].shape == (2, 0)
