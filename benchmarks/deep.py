"""A graph of thousands of nodes, as unrolled recurrences have: products and elementwise Ops in turn."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

WIDTH = 32


def chain(n_nodes: int) -> tuple[Any, Any]:
    """Return input and output of ``x := scale tanh(x W + b)``, repeated: four nodes each time."""
    rng = np.random.default_rng(3)
    weights = rng.normal(scale=WIDTH**-0.5, size=(WIDTH, WIDTH)).astype("float32")
    w, b = pytensor.shared(weights, "W"), pytensor.shared(np.zeros((WIDTH, WIDTH), "float32"), "b")
    scale = pytensor.shared(np.full((WIDTH, WIDTH), 1.1, "float32"), "scale")
    x = y = pt.fmatrix("x")
    for _ in range(n_nodes // 4):
        y = scale * pt.tanh(y @ w + b)
    return x, y


def value() -> np.ndarray:
    """Return a value of the input."""
    return np.random.default_rng(4).normal(size=(WIDTH, WIDTH)).astype("float32")
