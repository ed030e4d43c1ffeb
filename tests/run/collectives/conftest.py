"""Trainings that are compiled once for all tests of a module."""

import pytest

from support.cases.divided import Trained
from synk.extensions import updates


@pytest.fixture(scope="module")
def pair(module_ranks):
    """Return two trainings that are compiled once: every rank updates all, and each a part."""
    return [Trained(updates.momentum, shard, learning_rate=0.05) for shard in (None, "auto")]


@pytest.fixture
def runs(pair):
    """Return the two trainings, with the values that they began with, and as many layouts to come."""
    for trained in pair:
        trained.begin_anew()
    finish = pair[1].step._items[-1]
    finish._n_layouts, finish._declined = 0, ""  # or all but the first tests would see every rank update all
    return pair
