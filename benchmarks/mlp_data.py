"""What all sides have in common that train the perceptron, with nothing but NumPy: none imports another.

first_layers() -> float32 weights (inputs, outputs) and biases of each layer
module(torch, layers) -> the network of them
images(rows) -> float32 (rows, 784), int64 (rows,)
batches(options) -> the rows of a step, and of the next one, without end
"""

import argparse
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np

SIZES = (784, 800, 800, 10)
RATE, MOMENTUM = 0.01, 0.9

Layers = list[tuple[np.ndarray, np.ndarray]]  # weights (inputs, outputs) and biases


def first_layers(sizes: tuple[int, ...] = SIZES) -> Layers:
    """Return weights that keep the size of signals, arXiv:1502.01852, and zero biases; always the same."""
    rng = np.random.default_rng(1)
    return [
        (
            rng.normal(scale=np.sqrt(2 / n_in), size=(n_in, n_out)).astype("float32"),
            np.zeros(n_out, "float32"),
        )
        for n_in, n_out in pairwise(sizes)
    ]


def module(torch: Any, layers: Layers) -> Any:
    """Write the perceptron as a torch module."""
    parts: list[Any] = []
    for weights, biases in layers:
        linear = torch.nn.Linear(*weights.shape)
        linear.weight.data = torch.tensor(weights.T.copy())
        linear.bias.data = torch.tensor(biases)
        parts += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def images(rows: int, sizes: tuple[int, ...] = SIZES) -> tuple[np.ndarray, np.ndarray]:
    """Return noise instead of digits, which take as long: float32 pixels and int64 labels."""
    rng = np.random.default_rng(2)
    return rng.random((rows, sizes[0]), "float32"), rng.integers(sizes[-1], size=rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many rows there are, and in a batch."""
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of all ranks together")


def batches(options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yield the rows of every batch, epoch after epoch."""
    for epoch in count():
        order = np.random.default_rng(epoch).permutation(options.rows)
        yield from np.split(order, range(options.batch, options.rows, options.batch))
