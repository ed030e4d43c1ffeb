"""Data: arrays in shared memory, read and written like NumPy arrays.

Shows ``synk.data``: what it says of itself, writing, growing, shrinking and dtypes.
"""

import numpy as np

import synk

synk.fork()  # Data belongs to a run: first fork, then make it

# Given a value; or a variable, or dtype and shape, and filled later.
rng = np.random.default_rng(0)
first = rng.normal(size=(5, 4)).astype("float32")
x = synk.data(first, name="x")
print(f"made:          {x}")
assert x.shape == (5, 4)
assert x.dtype == "float32"
assert len(x) == 5

# It reads and writes like an array. x.data is the array itself, over the shared memory: no copy.
x[3] = 0
x[:2] *= 10
assert np.allclose(x[:2], 10 * first[:2])
assert not x.data[3].any()
assert np.isclose(np.mean(x), x.data.mean())
print(f"row 3 zeroed:  {x[3]}")

# A new value may have another shape, if it has as many dimensions. A tenth more memory than
# needed now, so that data sets may grow a little without moving.
x.set_value(rng.normal(size=(2000, 10)).astype("float32"), oversize=1.1)
print(f"set and grown: {x}")
assert x.alloc_size == 22_000

# Within that memory a new length costs nothing, and what was there stays.
before = x[:].copy()
x.set_length(2200)
x[2000:] = 1
assert x.alloc_size == 22_000
assert np.array_equal(x[:2000], before)
print(f"longer:        {x}")

# Beyond it, memory is allocated anew, and what was there still stays.
x.set_length(3000)
assert np.array_equal(x[:2000], before)
print(f"longer still:  {x}")

# Memory never shrinks by itself.
x.set_length(10)
assert x.alloc_size == 30_000
x.free_memory()  # in all ranks
x.set_value(before[:10])
assert x.alloc_size == 100
print(f"freed and set: {x}")

# dtypes are fixed. What would lose precision is refused, unless forced.
doubles = rng.normal(size=(10, 10))
try:
    x.set_value(doubles)
except TypeError as error:
    print(f"refused:       {error}")
x.set_value(doubles, force_cast=True)
assert np.array_equal(x, doubles.astype("float32"))
print(f"forced:        {x}")

# Freed as well when it is dropped, like any array.
del x
synk.close()
