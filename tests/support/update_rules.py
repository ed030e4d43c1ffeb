"""Update rules as formulas in NumPy: p, gradient, number of the step, state -> new p."""

import numpy as np


def sgd(p, g, t, s, learning_rate):
    return p - learning_rate * g


def momentum(p, g, t, s, learning_rate, momentum=0.9):
    s["v"] = momentum * s.get("v", 0) - learning_rate * g
    return p + s["v"]


def nesterov_momentum(p, g, t, s, learning_rate, momentum=0.9):
    s["v"] = momentum * s.get("v", 0) - learning_rate * g
    return p + momentum * s["v"] - learning_rate * g


def adagrad(p, g, t, s, learning_rate=1.0, epsilon=1e-6):
    s["a"] = s.get("a", 0) + g**2
    return p - learning_rate * g / np.sqrt(s["a"] + epsilon)


def rmsprop(p, g, t, s, learning_rate=1.0, rho=0.9, epsilon=1e-6):
    s["a"] = rho * s.get("a", 0) + (1 - rho) * g**2
    return p - learning_rate * g / np.sqrt(s["a"] + epsilon)


def adadelta(p, g, t, s, learning_rate=1.0, rho=0.95, epsilon=1e-6):
    s["a"] = rho * s.get("a", 0) + (1 - rho) * g**2
    move = g * np.sqrt(s.get("d", 0) + epsilon) / np.sqrt(s["a"] + epsilon)
    s["d"] = rho * s.get("d", 0) + (1 - rho) * move**2
    return p - learning_rate * move


def adam(p, g, t, s, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, largest=False):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g**2
    s["u"] = np.maximum(s.get("u", 0), s["v"]) if largest else s["v"]
    m, u = s["m"] / (1 - beta1**t), s["u"] / (1 - beta2**t)
    return p - learning_rate * m / (np.sqrt(u) + epsilon)


def amsgrad(p, g, t, s, **options):
    return adam(p, g, t, s, **options, largest=True)


def adamw(p, g, t, s, learning_rate=0.001, weight_decay=0.01, **options):
    return adam(p * (1 - learning_rate * weight_decay), g, t, s, learning_rate, **options)


def adamax(p, g, t, s, learning_rate=0.002, beta1=0.9, beta2=0.999, epsilon=1e-8):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["u"] = np.maximum(beta2 * s.get("u", 0), abs(g))
    return p - learning_rate / (1 - beta1**t) * s["m"] / (s["u"] + epsilon)


def lion(p, g, t, s, learning_rate=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0):
    m = s.get("m", np.zeros_like(p))
    s["m"] = beta2 * m + (1 - beta2) * g
    decay = weight_decay if p.ndim > 1 else 0
    return p - learning_rate * (np.sign(beta1 * m + (1 - beta1) * g) + decay * p)


def lars(p, g, t, s, learning_rate, momentum=0.9, weight_decay=0.0, trust=0.001):
    if p.ndim > 1:
        size, slope = np.linalg.norm(p), np.linalg.norm(g)
        ratio = trust * size / (slope + weight_decay * size) if size and slope else 1
        g = ratio * (g + weight_decay * p)
    s["v"] = momentum * s.get("v", 0) + learning_rate * g
    return p - s["v"]


def lamb(p, g, t, s, learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.01):
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g**2
    u = s["m"] / (1 - beta1**t) / (np.sqrt(s["v"] / (1 - beta2**t)) + epsilon)
    if p.ndim > 1:
        u = u + weight_decay * p
        size, length = np.linalg.norm(p), np.linalg.norm(u)
        u = u * (size / length if size and length else 1)
    return p - learning_rate * u


def adafactor(p, g, t, s, learning_rate=None, decay=0.8, threshold=1.0, epsilon1=1e-30, epsilon2=1e-3):
    """With sums, as in algorithm 4: ``R C / sum(R)`` of them is the outer product of means by their mean."""
    rate = min(0.01, 1 / np.sqrt(t)) if learning_rate is None else learning_rate
    b, squares = 1 - t**-decay, g**2 + epsilon1
    if p.ndim > 1:
        table = squares.reshape(len(p), -1)
        s["r"] = b * s.get("r", 0) + (1 - b) * table.sum(1)
        s["c"] = b * s.get("c", 0) + (1 - b) * table.sum(0)
        v = (np.outer(s["r"], s["c"]) / s["r"].sum()).reshape(p.shape)
    else:
        v = s["v"] = b * s.get("v", 0) + (1 - b) * squares
    u = g / np.sqrt(v)
    u = u / max(1, np.sqrt((u**2).mean()) / threshold)
    return p - rate * max(epsilon2, np.sqrt((p**2).mean())) * u


ELEMENTWISE = [sgd, momentum, nesterov_momentum, adagrad, rmsprop, adadelta, adam, amsgrad, adamw, adamax]
FORMULAS = [*ELEMENTWISE, lion, lars, lamb, adafactor]
