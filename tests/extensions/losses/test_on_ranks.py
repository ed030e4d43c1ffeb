"""Losses and their gradients on ranks are those of one process, on any split of rows."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from support.cases.losses import CASES, CLASSES, INPUTS, VALUES, compiled, z
from support.processes.of_rank import runs_of
from support.slow import slow
from synk.extensions import losses, train, updates

module_ranks = runs_of(3, later=[1, 2])

# They divide one sum over rows by another; others are kept for later, as they take seconds each.
SOON = ["dice of the batch, weighted", "classes, all options"]


@pytest.mark.parametrize(
    "names", [SOON, slow([name for name in CASES if name not in SOON])], ids=["few", "all"]
)
def test_losses_and_gradients_on_ranks_are_those_of_one_process(module_ranks, names):
    """Also of two rows and of one, which leave ranks without any; of the weights of a layer below."""
    scale = pytensor.shared(np.array([1.0, -0.5, 2.0]), name="scale")
    below = z * scale.dimshuffle("x", 0, "x", "x")
    graphs = []
    for graph in (CASES[name][0] for name in names):
        loss = pytensor.graph.replace.clone_replace(graph, {z: below})
        graphs += [loss, pytensor.grad(loss, scale)]
    on_ranks, alone = synk.function(INPUTS, graphs), compiled(graphs)
    for n_rows in (7, 4, 1):
        rows = [value[:n_rows] for value in VALUES]
        for found, wanted in zip(on_ranks(*rows), alone(*rows), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", ["dice of the batch", slow("classes, all options"), slow("dice of images")])
def test_steps_on_ranks_are_those_of_one_process(module_ranks, case):
    """In float32, to the rounding of sums that come in another order."""
    start = np.array([1.0, -0.5, 2.0])
    scale, other = (pytensor.shared(start.astype("float32"), name="scale") for _ in range(2))
    rows = [value.astype("float32") if value.dtype.kind == "f" else value for value in VALUES]
    inputs = [
        pt.tensor(one.name, shape=one.type.shape, dtype=row.dtype)
        for one, row in zip(INPUTS, rows, strict=True)
    ]
    x, y, labels, w = inputs

    def loss_of(scale):
        logits = x * scale.dimshuffle("x", 0, "x", "x")
        if case == "classes, all options":
            return losses.cross_entropy(logits, labels, class_weights=CLASSES, ignored=255, weights=w)
        per = case.removeprefix("dice of the ").removeprefix("dice of ").removesuffix("s")
        return losses.dice(pt.sigmoid(logits), y, per=per, weights=w)

    used = [x, labels, w] if case.startswith("classes") else [x, y, w]
    rows = [rows[inputs.index(one)] for one in used]
    step = train.make_train_function(loss_of(scale), [scale], used, updates.sgd, learning_rate=1.0)
    loss = loss_of(other)
    changed = [(other, other - pytensor.grad(loss, other))]
    alone = compiled(loss, used, updates=changed)
    for n_rows in (7, 7, 2):
        some = [row[:n_rows] for row in rows]
        np.testing.assert_allclose(step(*some), alone(*some), rtol=1e-6)
    np.testing.assert_allclose(scale.get_value(), other.get_value(), rtol=1e-6)
