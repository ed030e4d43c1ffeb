"""Update rules of users; one that is not linear in the gradient needs the gradient of all rows."""

import numpy as np
import pytensor
import pytensor.tensor as pt

from support.exact.models.model import Model, parameter


def _network():
    x, y = pt.matrix("x"), pt.vector("y")
    w, out = parameter("w", 4, 3), parameter("out", 3)
    loss = pt.mean((pt.tanh(x @ w) @ out - y) ** 2)
    return Model([x, y], loss, [w, out], lambda n, rng: [rng.normal(size=(n, 4)), rng.normal(size=n)])


def clipped_by_global_norm():
    model = _network()
    gradients = pytensor.grad(model.loss, model.parameters)
    norm = pt.sqrt(sum(pt.sum(g**2) for g in gradients))
    scale = pt.minimum(1, 0.05 / norm)
    model.updates = [(p, p - scale * g) for p, g in zip(model.parameters, gradients, strict=True)]
    return model


def momentum():
    model = _network()
    model.updates = []
    for p, g in zip(list(model.parameters), pytensor.grad(model.loss, model.parameters), strict=True):
        velocity = pytensor.shared(np.zeros(p.get_value().shape), name=f"velocity of {p.name}")
        new = 0.9 * velocity - 0.1 * g
        model.updates += [(velocity, new), (p, p + new)]
    model.parameters = [variable for variable, _ in model.updates]
    return model


def adam():
    model = _network()
    step = pytensor.shared(np.zeros(()), name="step")
    updates = [(step, step + 1)]
    for p, g in zip(model.parameters, pytensor.grad(model.loss, model.parameters), strict=True):
        m, v = (pytensor.shared(np.zeros(p.get_value().shape), name=f"{it} of {p.name}") for it in "mv")
        new_m, new_v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        rate = 0.05 * pt.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        updates += [(m, new_m), (v, new_v), (p, p - rate * new_m / (pt.sqrt(new_v) + 1e-8))]
    model.updates = updates
    model.parameters = [variable for variable, _ in updates]
    return model
