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


FORMULAS = [sgd, momentum, nesterov_momentum, adagrad, rmsprop, adadelta, adam, amsgrad, adamw, adamax]
