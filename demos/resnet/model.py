"""Residual networks of 18, 34 and 50 layers, as PyTensor graphs. Nothing here depends on ranks.

    images -> 7 x 7 convolution -> pooling -> four stages of residual blocks -> mean over pixels -> classes

Each stage has half the pixels of the one before, down and across, and twice the channels. A block of the 50
layers strides in its 3 x 3 convolution, as most implementations do ("v1.5"), and not in the first one.

He, Zhang, Ren and Sun (2015), arXiv:1512.03385, table 1.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from synk import ops
from synk.extensions.initialisers import he_normal, ones, zeros
from synk.extensions.layers import (
    BatchNorm,
    Conv,
    Dense,
    GlobalAvgPool,
    MaxPool,
    ReLU,
    Residual,
    Sequential,
)

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}  # of each stage
WIDTHS = (64, 128, 256, 512)  # channels of the 3 x 3 convolutions in each stage
N_CLASSES = 1000  # of ImageNet
N_PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032}  # for that many classes

# Of ImageNet's pixels from 0 to 1: red, green, blue.
MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Network(NamedTuple):
    """The graphs of a network, and what they are made of."""

    params: dict[str, Any]  # shared variables, float32
    train_loss: Any  # mean cross-entropy over rows, with the statistics of the batch
    loss: Any  # the same with running statistics
    accuracy: Any  # share of the rows that are classified correctly
    updates: list[tuple[Any, Any]]  # of the running statistics


def build(
    images: Any,
    labels: Any,
    depth: int,
    n_classes: int,
    seed: int,
    zero_gamma: bool = False,
    train_images: Any = None,
) -> Network:
    """Make a network with random weights.

    Parameters
    ----------
    images : float32 tensor, shape (rows, 3, height, width)
        As of `normalised`.
    labels : int64 vector
    depth : {18, 34, 50}
    n_classes : int
    seed : int
        Of the weights.
    zero_gamma : bool
        Whether each block begins as its shortcut alone, arXiv:1706.02677.
    train_images : float32 tensor, optional
        Where others are trained on than tested with.

    Raises
    ------
    ValueError
        Another number of parameters came out than the network has.
    """
    model = resnet(depth, n_classes, np.random.default_rng(seed), zero_gamma)
    check_size(model.params, depth, n_classes)
    logits = model(images)
    train_logits, updates = model.training(images if train_images is None else train_images)
    return Network(
        params=model.params,
        train_loss=ops.softmax_cross_entropy(train_logits, labels).mean(),
        loss=ops.softmax_cross_entropy(logits, labels).mean(),
        accuracy=pt.eq(logits.argmax(axis=1), labels).astype("float32").mean(),
        updates=updates,
    )


def normalised(pixels: Any) -> Any:
    """Return pixels from 0 to 255, (rows, 3, height, width), as float32 about zero."""
    scale = np.float32(1 / 255) / np.array(DEVIATIONS, "float32")
    shift = -np.array(MEANS, "float32") / np.array(DEVIATIONS, "float32")
    return pixels.astype("float32") * scale.reshape(3, 1, 1) + shift.reshape(3, 1, 1)


def resnet(depth: int, n_classes: int, rng: np.random.Generator, zero_gamma: bool = False) -> Sequential:
    """Return the layers; parameters and errors are those of `build`."""
    if depth not in BLOCKS:
        raise ValueError(f"no network of {depth} layers is known here; pass {', '.join(map(str, BLOCKS))}")
    branch, expansion = (bottleneck, 4) if depth >= 50 else (basic, 1)
    layers: dict[str, Any] = {
        **numbered(1, conv(3, 64, 7, rng, stride=2), BatchNorm(64), ReLU()),
        "pool": MaxPool(3, 2, padding=1),
    }
    n_in = 64
    for stage, (n_blocks, width) in enumerate(zip(BLOCKS[depth], WIDTHS, strict=True), start=1):
        for block in range(n_blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            last_norm = BatchNorm(expansion * width, init=zeros if zero_gamma else ones)
            layers[f"stage{stage}_{block}"] = Residual(
                Sequential(**branch(n_in, width, stride, rng), norm=last_norm),
                shortcut(n_in, last_norm.n, stride, rng),
                activation=ops.relu,
            )
            n_in = last_norm.n
    return Sequential(**layers, mean=GlobalAvgPool(), head=Dense(n_in, n_classes, init=small, rng=rng))


def basic(n_in: int, width: int, stride: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return two 3 x 3 convolutions."""
    first = conv(n_in, width, 3, rng, stride), BatchNorm(width), ReLU()
    return {**numbered(1, *first), "conv2": conv(width, width, 3, rng)}


def bottleneck(n_in: int, width: int, stride: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return a 3 x 3 convolution between two of 1 x 1, the last with four times the channels."""
    first = conv(n_in, width, 1, rng), BatchNorm(width), ReLU()
    second = conv(width, width, 3, rng, stride), BatchNorm(width), ReLU()
    return {**numbered(1, *first), **numbered(2, *second), "conv3": conv(width, 4 * width, 1, rng)}


def shortcut(n_in: int, n_out: int, stride: int, rng: np.random.Generator) -> Sequential | None:
    """Return a layer that fits the input to the output of a branch, or None where it has that shape."""
    if stride == 1 and n_in == n_out:
        return None
    return Sequential(conv=conv(n_in, n_out, 1, rng, stride), norm=BatchNorm(n_out))


def numbered(number: int, conv: Conv, norm: BatchNorm, relu: ReLU) -> dict[str, Any]:
    """Return three layers by name."""
    return {f"conv{number}": conv, f"norm{number}": norm, f"relu{number}": relu}


def conv(n_in: int, n_out: int, size: int, rng: np.random.Generator, stride: int = 1) -> Conv:
    """Return a convolution without a bias, as a batch norm follows; with stride 1 images keep their size."""
    init = partial(he_normal, fan="out")
    return Conv(n_in, n_out, size, stride=stride, padding=size // 2, bias=False, init=init, rng=rng)


def small(shape: tuple[int, ...], rng: np.random.Generator, dtype: str) -> np.ndarray:
    """Draw normal numbers of deviation 0.01: all classes begin about equally likely, arXiv:1706.02677."""
    return rng.normal(scale=0.01, size=shape).astype(dtype)


def check_size(params: dict[str, Any], depth: int, n_classes: int) -> None:
    """Raise unless there are as many parameters as the network has; running statistics are none."""
    n_inputs = params["head.W"].get_value(borrow=True).shape[0]
    expected = N_PARAMETERS[depth] + (n_inputs + 1) * (n_classes - N_CLASSES)
    found = count(params)
    if found != expected:
        raise ValueError(
            f"ResNet-{depth} of {n_classes} classes has {expected:,} parameters, but this {found:,}"
        )


def count(params: dict[str, Any]) -> int:
    """Return how many numbers are trained."""
    return sum(param.get_value(borrow=True).size for param in params.values())
