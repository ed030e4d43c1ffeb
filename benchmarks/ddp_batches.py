"""The batches that both sides of ``ddp.py`` train on."""

import argparse
from collections.abc import Iterator
from itertools import count

import numpy as np


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many rows there are, and in a batch."""
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="rows of all ranks together")


def batches(options: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yield the rows of every batch, epoch after epoch."""
    for epoch in count():
        order = np.random.default_rng(epoch).permutation(options.rows)
        yield from np.split(order, range(options.batch, options.rows, options.batch))
