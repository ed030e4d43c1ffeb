"""Update rules as scripts for one process have them: a loss and parameters -> a dict of new values."""

from collections import OrderedDict

import numpy as np
import pytensor
import pytensor.tensor as pt


def zeros(p):
    return pytensor.shared(np.zeros_like(p.get_value()), shape=p.type.shape)


def sgd_with_momentum(loss, params, learning_rate=0.1, momentum=0.9):
    """Velocity in a second set of updates, which replaces the new values of the first."""
    updates = OrderedDict(
        (p, p - learning_rate * g) for p, g in zip(params, pytensor.grad(loss, params), strict=True)
    )
    for p in params:
        v = zeros(p)
        x = momentum * v + updates[p]
        updates[v] = x - p
        updates[p] = x
    return updates


def adam(loss, params, learning_rate=0.05, beta1=0.9, beta2=0.999, epsilon=1e-8):
    """The count of steps is a float, and the correction part of the rate."""
    updates, count = OrderedDict(), pytensor.shared(0.0)
    t = count + 1
    rate = learning_rate * pt.sqrt(1 - beta2**t) / (1 - beta1**t)
    for p, g in zip(params, pytensor.grad(loss, params), strict=True):
        m, v = zeros(p), zeros(p)
        updates[m] = beta1 * m + (1 - beta1) * g
        updates[v] = beta2 * v + (1 - beta2) * g**2
        updates[p] = p - rate * updates[m] / (pt.sqrt(updates[v]) + epsilon)
    updates[count] = t
    return updates


def total_norm(loss, params, learning_rate=0.3, longest=0.4):
    """Gradients of all parameters shortened together, with a penalty that is added to the loss here."""
    gradients = pytensor.grad(loss + 0.01 * sum((p**2).sum() for p in params), params)
    norm = pt.sqrt(sum((g**2).sum() for g in gradients))
    scale = pt.clip(norm, 0, longest) / (1e-7 + norm)
    return {p: p - learning_rate * scale * g for p, g in zip(params, gradients, strict=True)}


def rprop(loss, params, first=0.01, up=1.2, down=0.5):
    """Steps of a size of their own for each element, by the signs of two gradients."""
    updates = []
    for p, g in zip(params, pytensor.grad(loss, params), strict=True):
        before, size = zeros(p), zeros(p)
        size.set_value(size.get_value() + first)
        agrees = pt.sign(before * g)
        new_size = size * pt.switch(pt.gt(agrees, 0), up, pt.switch(pt.lt(agrees, 0), down, 1.0))
        updates += [(before, g), (size, new_size), (p, p - new_size * pt.sign(g))]
    return updates


def max_norm(loss, params, learning_rate=0.2, longest=1.1):
    """Columns of the new weights are kept from growing longer than a limit."""
    updates = OrderedDict()
    for p, g in zip(params, pytensor.grad(loss, params), strict=True):
        new = p - learning_rate * g
        if p.ndim == 2:
            lengths = pt.sqrt((new**2).sum(axis=0, keepdims=True))
            new = new * pt.clip(lengths, 0, longest) / (1e-7 + lengths)
        updates[p] = new
    return updates


RULES = [sgd_with_momentum, adam, total_norm, rprop, max_norm]


# --- of what a flat gradient does not tell ---------------------------------------------------------


def polyak(loss, params):
    """Steps as long as the loss is large."""
    gradients = pytensor.grad(loss, params)
    rate = loss / sum((g**2).sum() for g in gradients)
    return {p: p - 0.5 * rate * g for p, g in zip(params, gradients, strict=True)}


def newton(loss, params):
    """Steps divided by the diagonal of second derivatives of the sum of the gradient."""
    gradients = pytensor.grad(loss, params)
    curved = pytensor.grad(sum(g.sum() for g in gradients), params)
    return {p: p - 0.1 * g / (1 + abs(h)) for p, g, h in zip(params, gradients, curved, strict=True)}
