"""``batch``: choose rows of the inputs, before they are scattered.

Shows the kinds of selection, several inputs side by side, and minibatch Data. Row numbers are
sent, not rows: each rank gathers its own from shared memory.
"""

import numpy as np
import pytensor.tensor as pt

import synk

n_ranks = synk.fork()

x, w, y = pt.dmatrix("x"), pt.dmatrix("w"), pt.dmatrix("y")
f = synk.function([x, w], ((x + w) @ y).mean(axis=0), bcast_inputs=[y])

rng = np.random.default_rng(0)
x_values, w_values = rng.normal(size=(1000, 10)), rng.normal(size=(1000, 10))
y_values = rng.normal(size=(10, 5))
xs, ws, ys = f.build_inputs(x_values, w_values, y_values)


def alone(rows):
    """Compute in one process, from those rows of x and w."""
    return ((x_values[rows] + w_values[rows]) @ y_values).mean(axis=0)


# --- what a batch can be -----------------------------------------------------------------------------

# What selects rows of a NumPy array selects them here; only an int is not one row, but the first so many.
selections = {
    "the first rows": 101,
    "a slice": slice(100, 233),
    "the last rows": slice(-50, None),
    "a list": [3, 1, 4, 1, 5, -9],
    "a shuffled batch": rng.permutation(1000)[:137],
}
for name, batch in selections.items():
    rows = slice(batch) if isinstance(batch, int) else batch
    expected = alone(rows)
    assert np.allclose(f(xs, ws, ys, batch=batch), expected)
    assert np.allclose(f(xs, ws, ys, batch=batch, num_slices=4), expected)  # each rank's part, in parts
    print(f"{name + ':':18}{len(x_values[rows]):4} rows, the numbers of one process")

# Broadcast inputs are whole for everyone: batch means rows of scattered inputs only.

# --- minibatch Data ----------------------------------------------------------------------------------

# Noise is drawn anew for each batch, and only for its rows: row i of a minibatch goes with the
# i-th row that was selected of the others.
rows = rng.permutation(1000)[:100]
noise = rng.normal(size=(100, 10))
noises = synk.data(noise, minibatch=True)
expected = ((x_values[rows] + noise) @ y_values).mean(axis=0)
assert np.allclose(f(xs, noises, ys, batch=rows), expected)
print(f"{'minibatch Data:':18}{len(rows):4} rows, the numbers of one process")

# --- mistakes are refused before anything is sent ------------------------------------------------

try:
    f(xs, ws, ys, batch=1200)
except IndexError as error:
    print(f"refused: {error}")

synk.close()
