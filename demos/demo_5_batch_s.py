"""``batch_s``: choose rows of shared variables, from each rank's own shard.

The data is scattered once and stays with the ranks, as it would in the memory of GPUs; a call
says which of its rows each rank uses.
"""

from itertools import pairwise

import numpy as np
import pytensor

import synk

n_ranks = synk.fork(3)

s_x, s_y = pytensor.shared(np.zeros((0, 10)), name="s_x"), pytensor.shared(np.zeros((10, 5)), name="s_y")
f = synk.function([], ((s_x @ s_y).sum(axis=0), "sum"), sliceable_shareds=[s_x])

rng = np.random.default_rng(0)
x_values, y_values = rng.normal(size=(600, 10)), rng.normal(size=(10, 5))
synk.scatter(s_x, x_values)
synk.broadcast(s_y, y_values)
shards = np.array_split(x_values, n_ranks)  # as scatter splits
print(f"rows on the ranks: {synk.get_lengths(s_x)}")


def alone(selections):
    """Compute in one process, from the rows that each rank selects of its shard."""
    chosen = np.concatenate([shard[rows] for shard, rows in zip(shards, selections, strict=True)])
    return (chosen @ y_values).sum(axis=0)


def check(name, batch_s, selections):
    expected = alone(selections)
    assert np.allclose(f(batch_s=batch_s), expected)
    assert np.allclose(f(batch_s=batch_s, num_slices=4), expected)
    print(f"{name + ':':30}the numbers of one process")


# --- one selection for all ranks -------------------------------------------------------------------

everything = slice(None)
check("all rows", None, [everything] * n_ranks)
check("one slice for all", slice(50, 150), [slice(50, 150)] * n_ranks)
rows = rng.permutation(200)[:30]
check("one list for all", rows, [rows] * n_ranks)

# --- one for each rank -------------------------------------------------------------------------------

slices = [slice(rank, rank + 100) for rank in range(n_ranks)]
check("a slice for each", slices, slices)

# Of different lengths: ranks with fewer rows wait for the others, the result is the same.
lists = [rng.permutation(200)[: 20 * (rank + 1)] for rank in range(n_ranks)]
check("a list for each, ragged", lists, lists)

# --- a global batch ------------------------------------------------------------------------------------

# A shuffled batch of the whole data set: each rank takes those of its rows that are in it. As
# with `batch`, the result does not depend on how many ranks there are.
batch = rng.permutation(600)[:99]
starts = np.cumsum([0, *synk.get_lengths(s_x)])
of_rank = [batch[(start <= batch) & (batch < stop)] - start for start, stop in pairwise(starts)]
assert np.allclose(f(batch_s=of_rank), (x_values[batch] @ y_values).sum(axis=0))
print(f"{'a batch of all rows:':30}{[len(rows) for rows in of_rank]} rows, the numbers of one process")

synk.close()
