"""Functions: one graph on all ranks, its rows scattered, its outputs reduced.

Shows ``synk.function``, reduce operations, ``num_slices``, and where the numbers must agree:
with the same graph in one process.
"""

import numpy as np
import pytensor.tensor as pt

import synk

# Before anything else: from here on there is one rank per core, this process being rank 0.
n_ranks = synk.fork()
print(f"{n_ranks} ranks")

# An ordinary PyTensor graph. Rows of x are independent, so ranks can share them out.
x, y = pt.dmatrix("x"), pt.dmatrix("y")
z = x @ y

f = synk.function(
    [x],  # scattered: every rank gets some of the rows
    [z.mean(axis=0), (z.sum(axis=0), "sum"), (z.max(axis=0), "max"), (z, "gather")],  # "avg" where not said
    bcast_inputs=[y],  # every rank gets all of it
)

# 1,001 rows: whatever the number of ranks, the shards will hardly be equal.
rng = np.random.default_rng(0)
x_values, y_values = rng.normal(size=(1001, 10)), rng.normal(size=(10, 5))

# What one process computes on all rows.
expected = f.as_pytensor(x_values, y_values)
assert np.allclose(expected[0], (x_values @ y_values).mean(axis=0))


def check(results):
    for result, alone in zip(results, expected, strict=True):
        assert np.allclose(result, alone)


# Arrays go to shared memory on the way ...
check(f(x_values, y_values))
print("NumPy arrays:      the numbers of one process")

# ... or once, to be used in many calls. Ranks read their rows in place.
xs, ys = f.build_inputs(x_values, y_values)
check(f(xs, ys))
print("data built once:   the numbers of one process")

# Each rank goes through its rows in four parts, one after the other: less memory for
# intermediate results, and still the same means, since parts weigh by their rows.
check(f(xs, ys, num_slices=4))
print("four slices:       the numbers of one process")

# Outputs may be picked, in any order.
maximum, mean = f(xs, ys, output_subset=[2, 0])
check([mean, expected[1], maximum, expected[3]])
print(f"mean over {len(xs):,} rows: {np.round(mean, 3)}")

# Workers end and shared memory is freed; without this line it happens when the script ends.
synk.close()
