"""Chains of one rank, on a normal density."""

import sys
import time

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

from synk.extensions.pymc.chains import RankChains, Start
from synk.extensions.pymc.record import Record
from synk.extensions.pymc.starts import StartError

SETTINGS = {"draws": 200, "tune": 200}


class Normal:
    """A standard normal density, which may take long, and fail at some evaluation."""

    def __init__(self, seconds=0.0, fails_at=None):
        self.seconds, self.fails_at, self.count = seconds, fails_at, 0

    def __call__(self, point):
        self.count += 1
        time.sleep(self.seconds)
        if self.count == self.fails_at:
            raise FloatingPointError("of the model")
        return float(-0.5 * point @ point), -point


class Half(Normal):
    """The half of it on one side."""

    def __call__(self, point):
        return super().__call__(point) if point[0] > 0 else (-np.inf, -point)


def starts(*chains):
    return [Start(chain, 10 + chain, np.full((1, 3), 0.5)) for chain in chains]


def followed(chains, record, until=Record.is_done):
    deadline = time.monotonic() + 60
    while not until(record):
        assert time.monotonic() < deadline
        record.add(chains(record.known(), False))
        time.sleep(0.01)
    return record


def test_a_rank_runs_its_chains_one_after_the_other_to_their_ends():
    record = followed(RankChains(1, Normal(), [[], starts(0, 1)], SETTINGS), Record(2, 3))
    drawn = record.kept(tuning=False)
    assert drawn.chains == [0, 1]
    assert drawn.points.shape == (2, 200, 3)
    assert (np.abs(drawn.points.mean(axis=(0, 1))) < 0.3).all()
    assert [one.finished_draws for one in record.progress] == [400, 400]
    assert not drawn.stats["diverging"].any()


def test_the_density_is_compiled_before_anybody_counts_seconds():
    density = Normal()
    RankChains(0, density, [starts(0)], SETTINGS)
    assert density.count > 0


def test_a_seed_gives_the_same_draws_however_often_they_are_asked_for():
    at_once, bit_by_bit = Record(1, 3), Record(1, 3)
    chains = RankChains(0, Normal(), [starts(0)], SETTINGS)
    chains({}, False)
    time.sleep(1)
    followed(chains, at_once)
    followed(RankChains(0, Normal(seconds=0.0005), [starts(0)], SETTINGS), bit_by_bit)
    assert np.array_equal(at_once.kept(False).points, bit_by_bit.kept(False).points)


def test_chains_that_are_stopped_give_what_they_have():
    chains, record = RankChains(0, Normal(seconds=0.001), [starts(0, 1)], SETTINGS), Record(2, 3)
    followed(chains, record, until=lambda record: record.known().get(0, 0) > 5)
    (last,) = chains(record.known(), True)
    record.add([last])
    assert last.done
    assert 5 < record.known()[0] < 400
    assert chains(record.known(), False) == []  # nor does the other one begin


def test_an_error_of_the_density_is_raised_as_it_was():
    chains = RankChains(0, Normal(fails_at=50), [starts(0)], SETTINGS)
    with pytest.raises(FloatingPointError, match="of the model"):
        followed(chains, Record(1, 3))


def test_a_chain_begins_at_the_first_point_with_a_finite_density():
    points = np.array([[-1.0, 0, 0], [0.25, 0, 0]])
    chains = RankChains(0, Half(), [[Start(0, 1, points)]], SETTINGS)
    assert [one.chain for one in chains({}, False)] == [0]
    assert chains({}, True)[0].done
    with pytest.raises(
        StartError, match="the log-density is not finite at any initial point: at the first it is -inf"
    ):
        RankChains(0, Half(), [[Start(3, 1, points[:1])]], SETTINGS)({}, False)
