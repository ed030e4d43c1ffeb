"""The network: a perceptron with two hidden layers, as PyTensor graphs. Nothing here depends on ranks.

    784 pixels -> dropout -> (800 rectified units -> dropout) twice -> 10 classes

Dropout scales up what it keeps, so the same weights serve for testing, where all units take part.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.random import shared_rng

SIZES = (784, 800, 800, 10)
DROPPED = (0.2, 0.5, 0.5)  # share of the inputs of each layer


class Network(NamedTuple):
    """The graphs of a network, and what they are made of."""

    x: Any  # float32 (rows, pixels)
    y: Any  # int64 (rows,)
    params: dict[str, Any]  # shared variables
    train_loss: Any  # mean cross-entropy over rows, with dropout
    loss: Any  # the same without
    accuracy: Any  # share of the rows that are classified correctly
    updates: list[tuple[Any, Any]]  # of the random state


def build(seed: int, dropout: bool = True, dtype: str = "float32") -> Network:
    """Make a network with random weights; the seed gives these, and which units are dropped."""
    x, y = pt.fmatrix("x"), pt.lvector("y")
    params = make_params(np.random.default_rng(seed), dtype)
    logits = perceptron(x, params)
    train_logits, updates = logits, []
    if dropout:
        rng = shared_rng(seed=seed, name="rng")
        next_rng, masks = draw_masks(rng, n_rows=x.shape[0])
        train_logits, updates = perceptron(x, params, masks), [(rng, next_rng)]
    return Network(
        x=x,
        y=y,
        params=params,
        train_loss=cross_entropy(train_logits, y),
        loss=cross_entropy(logits, y),
        accuracy=pt.eq(logits.argmax(axis=1), y).astype("float32").mean(),
        updates=updates,
    )


def make_params(rng: np.random.Generator, dtype: str) -> dict[str, Any]:
    """Make weights that keep the size of signals through rectified layers, and zero biases.

    Normal numbers of variance ``2 / inputs``: He, Zhang, Ren and Sun (2015), arXiv:1502.01852.
    """
    params = {}
    for layer, (n_in, n_out) in enumerate(pairwise(SIZES)):
        weights = rng.normal(scale=np.sqrt(2 / n_in), size=(n_in, n_out)).astype(dtype)
        params[f"W{layer}"] = pytensor.shared(weights, name=f"W{layer}")
        params[f"b{layer}"] = pytensor.shared(np.zeros(n_out, dtype), name=f"b{layer}")
    return params


def draw_masks(rng: Any, n_rows: Any) -> tuple[Any, list[Any]]:
    """Draw a factor for each input of each layer: zero where it is dropped, above one where it stays."""
    masks = []
    for n_in, dropped in zip(SIZES[:-1], DROPPED, strict=True):
        rng, kept = rng.bernoulli(1 - dropped, size=(n_rows, n_in))
        masks.append(kept.astype("float32") * np.float32(1 / (1 - dropped)))
    return rng, masks


def perceptron(x: Any, params: dict[str, Any], masks: Any = None) -> Any:
    """Return the logits of the classes, (rows, classes)."""
    for layer in range(len(SIZES) - 1):
        if layer > 0:
            x = pt.maximum(x, np.float32(0))
        if masks is not None:
            x = x * masks[layer]
        x = x @ params[f"W{layer}"] + params[f"b{layer}"]
    return x


def cross_entropy(logits: Any, y: Any) -> Any:
    """Return the mean over rows of ``-log softmax(logits)[y]``."""
    return -pt.special.log_softmax(logits, axis=1)[pt.arange(y.shape[0]), y].mean()
