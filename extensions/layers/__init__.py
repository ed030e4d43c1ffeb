"""A small set of layers of networks, as graphs, and an example for layers of one's own.

    rng -> layers, which own shared variables -> model(x), model.training(x) -> loss -> make_train_function

    model = Sequential(conv=Conv(3, 64, 3, rng=rng), relu=ReLU(), ..., head=Dense(512, 10, rng=rng))
    logits, updates = model.training(x)      # model(x) as for testing
    model.params                             # {"conv.W": ..., "conv.b": ..., ...}
    model.state                              # running statistics and random states

A layer only builds graphs: there is no training loop inside, and nothing here knows of ranks. Images are
(images, channels, height, width). Importing this package imports `synk.ops`.
"""

from synk.extensions.layers.base import Layer
from synk.extensions.layers.convolutions import Conv, ConvTranspose
from synk.extensions.layers.networks import Joined, Residual, Sequential
from synk.extensions.layers.norms import GroupNorm, LayerNorm
from synk.extensions.layers.plain import AvgPool, Flatten, GlobalAvgPool, MaxPool, ReLU, Upsample
from synk.extensions.layers.regularise import BatchNorm, Dropout
from synk.extensions.layers.summary import summary
from synk.extensions.layers.weights import Dense, Embedding

__all__ = [
    "AvgPool",
    "BatchNorm",
    "Conv",
    "ConvTranspose",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool",
    "GroupNorm",
    "Joined",
    "Layer",
    "LayerNorm",
    "MaxPool",
    "ReLU",
    "Residual",
    "Sequential",
    "Upsample",
    "summary",
]


def __dir__() -> list[str]:
    """List what is for users."""
    return __all__
