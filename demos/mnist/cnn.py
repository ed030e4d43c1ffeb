"""The other network: two convolutions, as layers. Nothing here depends on ranks.

28 x 28 pixels -> (5 x 5 filters, 32 and then 64 -> rectified -> the largest of each 2 x 2) twice
    -> 256 rectified units -> dropout -> 10 classes
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from model import Network

from synk import ops
from synk.extensions.layers import Conv, Dense, Dropout, Flatten, MaxPool, ReLU, Sequential

SIDE = 28  # pixels
DROPPED = 0.5  # share of the inputs of the last layer


def build(seed: int, dropout: bool = True, dtype: str = "float32") -> Network:
    """Make a network with random weights; the seed gives these, and which units are dropped."""
    x, y = pt.fmatrix("x"), pt.lvector("y")
    images = x.astype(dtype).reshape((-1, 1, SIDE, SIDE))
    network = layers(seed, DROPPED if dropout else 0.0, dtype)
    logits, (train_logits, updates) = network(images), network.training(images)
    return Network(
        x=x,
        y=y,
        params=network.params,
        train_loss=ops.softmax_cross_entropy(train_logits, y).mean(),
        loss=ops.softmax_cross_entropy(logits, y).mean(),
        accuracy=pt.eq(logits.argmax(axis=1), y).astype("float32").mean(),
        updates=updates if dropout else [],
    )


def layers(seed: int, dropped: float, dtype: str) -> Any:
    """Return the layers."""
    rng = np.random.default_rng(seed)
    return Sequential(
        conv1=Conv(1, 32, 5, rng=rng, dtype=dtype),
        relu1=ReLU(),
        pool1=MaxPool(2),
        conv2=Conv(32, 64, 5, rng=rng, dtype=dtype),
        relu2=ReLU(),
        pool2=MaxPool(2),
        flat=Flatten(),
        dense=Dense(64 * 4 * 4, 256, rng=rng, dtype=dtype),
        relu3=ReLU(),
        dropout=Dropout(dropped, seed=seed),
        head=Dense(256, 10, rng=rng, dtype=dtype),
    )
