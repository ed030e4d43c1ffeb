"""Digests tell values apart that ranks may have alike."""

from copy import deepcopy

import numpy as np
import pytest

from synk.run.collectives.read import digest


@pytest.mark.parametrize(
    "other",
    [np.ones(3, "f4"), np.ones((3, 1)), -np.zeros(3), np.full(3, np.nan), np.random.default_rng(0), 1.0],
)
def test_what_differs_in_any_way_has_another_digest(other):
    assert digest(np.zeros(3), 0).tolist() != digest(other, 1).tolist()
    assert (digest(other, 1) == digest(deepcopy(other), 2)).all() == isinstance(other, np.ndarray)
