"""Acts in which networks are trained: the same on GPUs and on cores."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytensor.tensor as pt

import synk
from support.gpu.acts import act
from synk.extensions import train, updates
from synk.gpu.speedups.graphs import Graphs

DEMOS = Path(__file__).parents[3] / "demos"


def digits(n_rows):
    """Return noise of MNIST's size, and labels."""
    rng = np.random.default_rng(2)
    return rng.random((n_rows, 784), "float32"), rng.integers(10, size=n_rows)


def trained(network, feed, rule, n_steps, batch, num_slices, announced=False, **options):
    """Return losses of the steps and, of every rank, the length of each parameter after them.

    Every other batch is one of row numbers, which are gathered; ``announced`` batches are named a step ahead.
    """
    step = train.make_train_function(
        network.train_loss,
        network.params.values(),
        [network.x, network.y],
        getattr(updates, rule),
        updates=network.updates,
        **options,
    )
    data = [synk.data(values) for values in feed]
    batches = [rows_of(number, batch, len(feed[0])) for number in range(n_steps)]
    losses = []
    for rows, following in zip(batches, [*batches[1:], None], strict=True):
        ahead = {"next_batch": following} if announced else {}
        losses.append(float(step(*data, batch=rows, num_slices=num_slices, **ahead)))
    params = [
        [float(np.linalg.norm(synk.get_value(rank, param))) for param in network.params.values()]
        for rank in range(len(synk.pids()))
    ]
    return {"losses": losses, "params": params}


def rows_of(number, batch, n_rows):
    """Return the rows of a step, in order or, every other time, as numbers."""
    first = number * batch % n_rows
    if number % 2:
        return np.arange(first, first + batch)[::-1].copy()
    return slice(first, first + batch)


@act
def perceptron(fork, n_ranks, num_slices=1, n_steps=8, rule="adam", announced=False, **options):
    """Train the perceptron of the MNIST demo; options are those of the fork."""
    recorded = count_recordings()
    fork(n_ranks, **options)
    sys.path.append(str(DEMOS / "mnist"))
    import model

    network = model.build(seed=0, dropout=False)
    found = trained(network, digits(500), rule, n_steps, 125, num_slices, announced, learning_rate=0.001)
    return found | {"recorded": len(recorded)}


@act
def digit_filters(fork, n_ranks, num_slices=1, n_steps=3, **options):
    """Train the convolutional network of the MNIST demo; options are those of the fork."""
    fork(n_ranks, **options)
    sys.path.append(str(DEMOS / "mnist"))
    import cnn

    network = cnn.build(seed=0, dropout=False)
    return trained(network, digits(40), "nesterov_momentum", n_steps, 11, num_slices, learning_rate=0.01)


@act
def residual(fork, n_ranks, depth=50, size=64, batch=8, n_steps=3):
    """Train a residual network; its blocks begin with a small share, lest rounding grows with depth."""
    fork(n_ranks)
    sys.path.append(str(DEMOS / "resnet"))
    import model

    x, y = pt.tensor("x", shape=(None, 3, size, size), dtype="float32"), pt.lvector("y")
    network = model.build(x, y, depth, n_classes=10, seed=0)
    for name, param in network.params.items():
        if name.endswith("branch.norm.gamma"):
            param.set_value(np.full_like(param.get_value(), 0.25))
    rng = np.random.default_rng(3)
    images = rng.standard_normal((2 * batch, 3, size, size), "float32")
    feed = images, rng.integers(10, size=2 * batch)
    rate = {"learning_rate": 0.001}
    fed = SimpleNamespace(
        x=x, y=y, params=network.params, train_loss=network.train_loss, updates=network.updates
    )
    return trained(fed, feed, "nesterov_momentum", n_steps, batch, 1, **rate)


def count_recordings():
    """Return a list that grows with every recording of launches which this rank makes."""
    recorded = []

    def record(graphs, run, original=Graphs.record):
        found = original(graphs, run)
        recorded.append(graphs)
        return found

    Graphs.record = record
    return recorded
