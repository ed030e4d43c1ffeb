"""Which elements each rank updates; on one rank that is all of them, in the same vectors."""

import numpy as np
import pytest

from support.cases.divided import Trained, is_divided
from synk.extensions import updates
from synk.run.collectives.sharded_call import CACHE_LINE, part


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100, 1_000])
def test_parts_are_whole_cache_lines_that_meet(length, n_ranks, itemsize):
    parts = part(length, n_ranks, itemsize)
    assert [k for start, stop in parts for k in range(start, stop)] == list(range(length))
    assert len(parts) == n_ranks
    assert all(start * itemsize % CACHE_LINE == 0 or start == length for start, _ in parts)
    assert max(stop - start for start, stop in parts) <= -(-length // n_ranks) + CACHE_LINE // itemsize


@pytest.mark.parametrize("rule", [updates.adam, updates.clipped(updates.sgd, 0.1)], ids=["alone", "sums"])
def test_one_rank_has_all_parts(ranks, rule):
    ranks(1)
    plain, divided = (Trained(rule, shard, learning_rate=0.1) for shard in (None, "auto"))
    for trained in (plain, divided):
        trained.train()
    assert is_divided(divided)
    for one, other in zip(plain.values(), divided.values(), strict=True):
        np.testing.assert_array_equal(one, other)
