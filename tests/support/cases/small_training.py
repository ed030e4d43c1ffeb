"""A small perceptron, trained on the open run."""

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.extensions import updates
from synk.extensions.train import make_train_function


def shared(value, name):
    return pytensor.shared(np.asarray(value, dtype="float64"), name=name)


def network(rng):
    """Return an MLP's loss, inputs and parameters."""
    x, labels = pt.matrix("x", dtype="float64"), pt.lvector("labels")
    parameters, value = [], x
    for number, (n_in, n_out) in enumerate([(6, 40), (40, 3)]):
        w = shared(rng.normal(size=(n_in, n_out)) / n_in, f"w{number}")
        b = shared(np.zeros(n_out), f"b{number}")
        value = value @ w + b if number else pt.tanh(value @ w + b)
        parameters += [w, b]
    losses = -pt.log(pt.special.softmax(value, axis=1))[pt.arange(labels.shape[0]), labels]
    return losses.mean(), [x, labels], parameters


def train(n_steps=3, look=lambda: None):
    """Train on the open run; return losses, all ranks' parameters, and what `look` returned at the end."""
    rng = np.random.default_rng(5)
    loss, inputs, parameters = network(rng)
    step = make_train_function(loss, parameters, inputs, updates.adam, learning_rate=0.01)
    rows, labels = rng.normal(size=(7, 6)), rng.integers(3, size=7)
    losses = []
    for _ in range(n_steps):
        look()
        losses.append(float(step(rows, labels)))
    seen = look()
    return losses, [synk.gather(parameter) for parameter in parameters], seen
