"""The training data of both sides of the ResNet benchmark, in NumPy only: torch's side has no synk.

pictures(rows, size) -> float32 (rows, 3, size, size), int64 (rows,)
span(number, batch, rows) -> which of them a step takes
"""

import numpy as np

N_CLASSES = 1000
N_BATCHES = 4  # that take turns
RATE, MOMENTUM = 0.001, 0.9


def pictures(rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise instead of photographs, which take as long; always the same."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((rows, 3, size, size), "float32"), rng.integers(N_CLASSES, size=rows)


def span(number: int, batch: int, rows: int) -> slice:
    """Return the rows of a step: next to each other, so that both sides read them in place."""
    start = number * batch % rows
    return slice(start, start + batch)
