"""Arrays that a shape decides, for the tests of linear algebra."""

import numpy as np


def draw(*shape, dtype="float64"):
    """Return an array of normal numbers, which depends on the shape alone."""
    values = np.random.default_rng(sum(shape)).normal(size=(2, *shape))
    return (values[0] + 1j * values[1] if dtype.startswith("complex") else values[0]).astype(dtype)
