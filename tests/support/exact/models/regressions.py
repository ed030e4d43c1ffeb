"""Generalised linear models: losses that are means, or weighted means, over rows."""

import pytensor.tensor as pt

from support.exact.models.model import Model, parameter


def linear_regression():
    x, y = pt.matrix("x"), pt.vector("y")
    w, b = parameter("w", 3), parameter("b")
    loss = pt.mean((x @ w + b - y) ** 2)
    return Model([x, y], loss, [w, b], lambda n, rng: [rng.normal(size=(n, 3)), rng.normal(size=n)])


def weighted_logistic_regression():
    x, y, weights = pt.matrix("x"), pt.vector("y"), pt.vector("weights")
    w = parameter("w", 3)
    logit = x @ w
    losses = pt.softplus(logit) - y * logit
    loss = pt.sum(weights * losses) / pt.sum(weights)
    return Model(
        [x, y, weights],
        loss,
        [w],
        lambda n, rng: [rng.normal(size=(n, 3)), 1.0 * (rng.random(n) < 0.5), rng.random(n) + 0.1],
    )


def poisson_regression_with_offset():
    x, y, exposure = pt.matrix("x"), pt.lvector("y"), pt.vector("exposure")
    w, b = parameter("w", 3), parameter("b")
    eta = x @ w + b + pt.log(exposure)
    loss = pt.mean(pt.exp(eta) - y * eta + pt.gammaln(y + 1))
    return Model(
        [x, y, exposure],
        loss,
        [w, b],
        lambda n, rng: [rng.normal(size=(n, 3)), rng.poisson(2, n), rng.random(n) + 0.5],
    )


def ridge_regression():
    """The regulariser counts once, however many ranks there are."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = parameter("w", 4)
    loss = pt.sum((x @ w - y) ** 2) / (2 * x.shape[0]) + 0.3 * pt.sum(w**2)
    return Model([x, y], loss, [w], lambda n, rng: [rng.normal(size=(n, 4)), rng.normal(size=n)])


def multinomial_logit():
    x, y = pt.matrix("x"), pt.lvector("y")
    w, b = parameter("w", 4, 3), parameter("b", 3)
    log_p = pt.special.log_softmax(x @ w + b, axis=1)
    loss = -pt.mean(log_p[pt.arange(y.shape[0]), y])
    return Model([x, y], loss, [w, b], lambda n, rng: [rng.normal(size=(n, 4)), rng.integers(0, 3, n)])


def cox_partial_likelihood():
    """Everyone at risk stands in the denominator: rows meet in a sum over those sorted by time."""
    x, time, event = pt.matrix("x"), pt.vector("time"), pt.vector("event")
    w = parameter("w", 3)
    order = pt.argsort(-time)
    eta = (x @ w)[order]
    at_risk = pt.log(pt.cumsum(pt.exp(eta)))
    loss = -pt.sum((eta - at_risk) * event[order]) / pt.maximum(pt.sum(event), 1)
    return Model(
        [x, time, event],
        loss,
        [w],
        lambda n, rng: [rng.normal(size=(n, 3)), rng.exponential(size=n), 1.0 * (rng.random(n) < 0.7)],
    )


def gaussian_process():
    """The rows that it is conditioned on are broadcast; the points that it predicts are scattered."""
    x, y = pt.matrix("x"), pt.vector("y")
    known_x, known_y = pt.matrix("known_x"), pt.vector("known_y")
    length, noise = parameter("length"), parameter("noise")

    def kernel(a, b):
        distance = pt.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=2)
        return pt.exp(-0.5 * distance / pt.exp(length))

    k = kernel(known_x, known_x) + pt.exp(noise) * pt.eye(known_x.shape[0])
    cholesky = pt.linalg.cholesky(k)
    alpha = pt.linalg.solve(k, known_y)
    evidence = -0.5 * known_y @ alpha - pt.sum(pt.log(pt.diagonal(cholesky)))
    error = pt.mean((kernel(x, known_x) @ alpha - y) ** 2)
    return Model(
        [x, y],
        error - 0.01 * evidence,
        [length, noise],
        lambda n, rng: [
            rng.normal(size=(n, 2)),
            rng.normal(size=n),
            rng.normal(size=(6, 2)),
            rng.normal(size=6),
        ],
        bcast_inputs=[known_x, known_y],
    )
