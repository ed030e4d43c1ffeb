"""Shared variables: every rank has its own value, and collectives move values between ranks.

Shows ``scatter``, ``broadcast``, ``gather``, ``all_reduce``, ``all_gather``, ``get_value`` and
``set_value``.
"""

import numpy as np
import pytensor

import synk

n_ranks = synk.fork(3)  # three, whatever the machine has: then 10 rows are shared out unevenly

# Plain PyTensor shared variables. Where data will come later, no rows are needed now.
s_x = pytensor.shared(np.zeros((0, 4)), name="s_x")
s_y = pytensor.shared(np.zeros((4, 5)), name="s_y")

# No inputs: the rows are those of s_x, and each rank has its own.
f = synk.function([], (s_x @ s_y).mean(axis=0), sliceable_shareds=[s_x])

# --- giving the ranks their values ---------------------------------------------------------------

rng = np.random.default_rng(0)
x_values, y_values = rng.normal(size=(10, 4)), rng.normal(size=(4, 5))
synk.scatter(s_x, x_values)  # the rows shared out
synk.broadcast(s_y, y_values)  # the same everywhere
print(f"rows of s_x on the ranks:  {synk.get_lengths(s_x)}")
print(f"shapes of s_y:             {synk.get_shapes(s_y)}")

# Rank 0 is this process: its shard is here, the others are looked at from here.
shards = np.array_split(x_values, n_ranks)
assert np.array_equal(s_x.get_value(), shards[0])
assert np.array_equal(synk.get_value(2, s_x), shards[2])

# --- computing -------------------------------------------------------------------------------------

# Ranks with more rows weigh more, so this is the mean over all ten.
expected = (x_values @ y_values).mean(axis=0)
assert np.allclose(f(), expected)
assert np.allclose(f(num_slices=2), expected)
print(f"mean over all rows:        {np.round(expected, 3)}")

# --- collectives -----------------------------------------------------------------------------------

# Joined along the rows; or, where shapes are equal, stacked on a new axis, one entry a rank.
assert np.array_equal(synk.gather(s_x, nd_up=0), x_values)
assert synk.gather(s_y).shape == (n_ranks, 4, 5)

# One rank's own value.
synk.set_value(1, s_y, y_values + 3)
assert np.array_equal(synk.get_value(1, s_y), y_values + 3)
assert np.array_equal(synk.get_value(2, s_y), y_values)

# All-reduce leaves every rank with the result: here the mean of y, y + 3 and y.
synk.all_reduce(s_y, op="avg")
for rank in range(n_ranks):
    assert np.allclose(synk.get_value(rank, s_y), y_values + 1)
print("all_reduce:                the mean, on every rank")

# Reduce can leave the ranks as they are and only return the result.
total = synk.reduce(s_y, op="sum", in_place=False)
assert np.allclose(total, n_ranks * (y_values + 1))
assert np.allclose(s_y.get_value(), y_values + 1)

# All-gather gives every rank all rows.
synk.all_gather(s_x)
assert np.array_equal(synk.get_value(2, s_x), x_values)
print(f"rows after all_gather:     {synk.get_lengths(s_x)}")

synk.close()
