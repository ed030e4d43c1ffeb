"""Losses in which the rows of a batch meet: pairs, triplets, contrasts, statistics of the batch."""

import pytensor.tensor as pt

from support.exact.models.model import Model, parameter
from synk.ops import batch_norm, conv2d, max_pool2d, relu, softmax_cross_entropy


def triplet_loss():
    """A triplet loss: each row's farthest row of its class, and its nearest row of another class."""
    x, label = pt.matrix("x"), pt.lvector("label")
    w = parameter("w", 4, 3)
    z = x @ w
    squares = pt.sum(z**2, axis=1)
    distance = squares[:, None] - 2 * z @ z.T + squares[None, :]
    alike = pt.eq(label[:, None], label[None, :])
    farthest = pt.max(pt.switch(alike, distance, -1e3), axis=1)
    nearest = pt.min(pt.switch(alike, 1e3, distance), axis=1)
    loss = pt.mean(pt.softplus(farthest - nearest + 1))
    return Model([x, label], loss, [w], lambda n, rng: [rng.normal(size=(n, 4)), rng.integers(0, 2, n)])


def info_nce():
    x, y = pt.matrix("x"), pt.matrix("y")
    v, w = parameter("v", 4, 3), parameter("w", 4, 3)
    a, b = x @ v, y @ w
    a /= pt.sqrt(pt.sum(a**2, axis=1, keepdims=True))
    b /= pt.sqrt(pt.sum(b**2, axis=1, keepdims=True))
    logits = a @ b.T / 0.5
    rows = pt.arange(x.shape[0])
    loss = -pt.mean(pt.special.log_softmax(logits, axis=1)[rows, rows])
    return Model([x, y], loss, [v, w], lambda n, rng: [rng.normal(size=(n, 4)), rng.normal(size=(n, 4))])


def mixture_of_experts():
    """The loads of experts are means over all rows, and the loss is none of rows."""
    x, y = pt.matrix("x"), pt.vector("y")
    gate, experts = parameter("gate", 4, 3), parameter("experts", 4, 3)
    p = pt.special.softmax(x @ gate, axis=1)
    chosen = pt.argmax(p, axis=1)
    one_hot = pt.eq(chosen[:, None], pt.arange(3)[None, :])
    prediction = pt.sum(one_hot * p * (x @ experts), axis=1)
    balance = 3 * pt.sum(pt.mean(one_hot, axis=0) * pt.mean(p, axis=0))
    loss = pt.mean((prediction - y) ** 2) + 0.1 * balance
    return Model([x, y], loss, [gate, experts], lambda n, rng: [rng.normal(size=(n, 4)), rng.normal(size=n)])


def batch_norm_by_hand():
    x, y = pt.matrix("x"), pt.vector("y")
    w, gamma, beta, out = (
        parameter("w", 4, 3),
        parameter("gamma", 3),
        parameter("beta", 3),
        parameter("out", 3),
    )
    mean, var = parameter("mean", 3), parameter("var", 3)
    h = x @ w
    normalised = (h - h.mean(axis=0)) / pt.sqrt(h.var(axis=0) + 1e-3)
    loss = pt.mean((pt.tanh(gamma * normalised + beta) @ out - y) ** 2)
    model = Model(
        [x, y],
        loss,
        [w, gamma, beta, out],
        lambda n, rng: [rng.normal(size=(n, 4)), rng.normal(size=n)],
    )
    model.parameters += [mean, var]
    model.updates += [(mean, 0.9 * mean + 0.1 * h.mean(axis=0)), (var, 0.9 * var + 0.1 * h.var(axis=0))]
    return model


def convolutional_batch_norm():
    images, labels = pt.tensor4("images"), pt.lvector("labels")
    filters, gamma, beta, out = (
        parameter("filters", 3, 2, 3, 3),
        parameter("gamma", 3),
        parameter("beta", 3),
        parameter("out", 12, 4),
    )
    mean, var = parameter("mean", 3), parameter("var", 3)
    h, running = batch_norm(conv2d(images, filters), gamma, beta, mean, var, train=True, all_ranks=True)
    h = max_pool2d(relu(h), 2)
    loss = pt.mean(softmax_cross_entropy(h.flatten(2) @ out, labels))
    model = Model(
        [images, labels],
        loss,
        [filters, gamma, beta, out],
        lambda n, rng: [rng.normal(size=(n, 2, 6, 6)), rng.integers(0, 4, n)],
    )
    model.parameters += [mean, var]
    model.updates += running
    return model
