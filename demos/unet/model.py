"""A U-Net as PyTensor graphs, with a Dice loss over the whole batch. Nothing here depends on ranks.

    images -> level 0 ------------------------ join -> two convolutions -> 1 x 1 convolution -> logits
                 pool -> level 1 ------- join -> two convolutions -> transposed convolution ^
                            pool -> ... -> transposed convolution ^

Ronneberger, Fischer and Brox (2015), arXiv:1505.04597, with padded convolutions and batch normalisation.
"""

from math import gcd
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from synk.extensions import losses
from synk.extensions.layers import (
    BatchNorm,
    Conv,
    ConvTranspose,
    GroupNorm,
    Joined,
    MaxPool,
    ReLU,
    Sequential,
)

GROUPS = 8  # of channels, where each image is normalised by itself


class Network(NamedTuple):
    """The graphs of a network, and what they are made of."""

    params: dict[str, Any]  # shared variables
    train_loss: Any  # one minus the soft Dice coefficient of the batch, with the statistics of the batch
    loss: Any  # the same with running statistics
    dice: Any  # of masks of zeros and ones, the mean over images
    probabilities: Any  # of pixels, shape of the images
    updates: list[tuple[Any, Any]]  # of the running statistics


def build(images: Any, masks: Any, base: int, depth: int, seed: int, norm: str = "all") -> Network:
    """Make a network with random weights.

    Parameters
    ----------
    images : float tensor, shape (rows, 1, size, size)
        The size is a multiple of ``2**depth``.
    masks : tensor, shape of `images`
        0 or 1.
    base : int
        Channels of the first level; each level down has twice as many.
    depth : int
        Levels down.
    seed : int
        Of the weights.
    norm : {"all", "own", "group"}
        Normalise by the rows of all ranks, by each rank's own, or each image by itself, in groups of
        channels. With "own" alone, a step is not that of one process.
    """
    rng = np.random.default_rng(seed)
    model = unet(base, depth, rng, norm=norm, dtype=images.dtype)
    logits, (train_logits, updates) = model(images), model.training(images)
    # A pixel is in the mask where its probability is more than a half.
    hard = pt.gt(logits, 0).astype(images.dtype)
    return Network(
        params=model.params,
        train_loss=losses.dice(pt.sigmoid(train_logits), masks),
        loss=losses.dice(pt.sigmoid(logits), masks),
        dice=1 - losses.dice(hard, masks, per="image", smooth=0),
        probabilities=pt.sigmoid(logits),
        updates=updates,
    )


def unet(base: int, depth: int, rng: np.random.Generator, *, norm: str, dtype: str) -> Sequential:
    """Return the layers, from one channel to one logit a pixel."""

    def normalising(n: int) -> BatchNorm | GroupNorm:
        if norm == "group":
            return GroupNorm(n, groups=gcd(n, GROUPS), dtype=dtype)
        return BatchNorm(n, all_ranks=norm == "all", dtype=dtype)

    def two_convolutions(n_in: int, n: int) -> dict[str, Any]:
        layers: dict[str, Any] = {}
        for place, channels in (("1", n_in), ("2", n)):
            # Normalisation takes out any constant, so biases would be of no use.
            layers[f"conv{place}"] = Conv(channels, n, 3, padding=1, bias=False, rng=rng, dtype=dtype)
            layers[f"norm{place}"] = normalising(n)
            layers[f"relu{place}"] = ReLU()
        return layers

    def level(n_in: int, n: int, depth: int) -> Sequential:
        if not depth:
            return Sequential(**two_convolutions(n_in, n))
        below = Sequential(
            pool=MaxPool(2),
            level=level(n, 2 * n, depth - 1),
            up=ConvTranspose(2 * n, n, 2, stride=2, rng=rng, dtype=dtype),
        )
        return Sequential(
            inward=Sequential(**two_convolutions(n_in, n)),
            below=Joined(below),
            outward=Sequential(**two_convolutions(2 * n, n)),
        )

    return Sequential(level=level(1, base, depth), head=Conv(base, 1, 1, rng=rng, dtype=dtype))
