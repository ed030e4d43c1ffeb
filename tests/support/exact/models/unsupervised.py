"""Clusters, components and embeddings: updates that are statistics of all rows, gradients of tables."""

import pytensor.tensor as pt

from support.exact.models.model import Model, parameter


def principal_component():
    x = pt.matrix("x")
    mean, component = parameter("mean", 4), parameter("component", 4)
    centred = x - x.mean(axis=0)
    values, vectors = pt.linalg.eigh(centred.T @ centred / x.shape[0])
    top = vectors[:, -1]
    loss = pt.sum(values[:-1])
    return Model(
        [x],
        loss,
        [mean, component],
        lambda n, rng: [rng.normal(size=(n, 4)) * [1, 2, 3, 4]],
        updates=[(mean, x.mean(axis=0)), (component, top * pt.sign(top[pt.argmax(abs(top))]))],
    )


def k_means():
    """A cluster without rows keeps its centre."""
    x = pt.matrix("x")
    centres = parameter("centres", 3, 2)
    distance = pt.sum((x[:, None, :] - centres[None, :, :]) ** 2, axis=2)
    nearest = pt.argmin(distance, axis=1)
    totals = pt.inc_subtensor(pt.zeros((3, 2))[nearest], x)
    counts = pt.bincount(nearest, minlength=3)[:, None]
    return Model(
        [x],
        pt.sum(pt.min(distance, axis=1)),
        [centres],
        lambda n, rng: [rng.normal(size=(n, 2))],
        updates=[(centres, pt.switch(counts > 0, totals / pt.maximum(counts, 1), centres))],
    )


def k_means_with_one_hot():
    x = pt.matrix("x")
    centres = parameter("centres", 3, 2)
    distance = pt.sum((x[:, None, :] - centres[None, :, :]) ** 2, axis=2)
    member = pt.eq(pt.argmin(distance, axis=1)[:, None], pt.arange(3)).astype("float64")
    counts = member.sum(axis=0)[:, None]
    return Model(
        [x],
        pt.mean(pt.min(distance, axis=1)),
        [centres],
        lambda n, rng: [rng.normal(size=(n, 2))],
        updates=[(centres, pt.switch(counts > 0, member.T @ x / pt.maximum(counts, 1), centres))],
    )


def gaussian_mixture():
    """One step of expectation and maximisation; shares, means and variances all are new."""
    x = pt.matrix("x")
    shares, means, log_scales = parameter("shares", 3), parameter("means", 3, 2), parameter("scales", 3)
    distance = pt.sum((x[:, None, :] - means) ** 2, axis=2)
    log_p = pt.special.log_softmax(shares) - distance / (2 * pt.exp(2 * log_scales)) - 2 * log_scales
    total = pt.logsumexp(log_p, axis=1, keepdims=True)
    share = pt.exp(log_p - total)
    members = share.sum(axis=0)
    new_means = share.T @ x / members[:, None]
    spread = pt.sum(share * pt.sum((x[:, None, :] - new_means) ** 2, axis=2), axis=0) / (2 * members)
    return Model(
        [x],
        -pt.mean(total),
        [shares, means, log_scales],
        lambda n, rng: [rng.normal(size=(n, 2))],
        updates=[
            (shares, pt.log(members / x.shape[0])),
            (means, new_means),
            (log_scales, 0.5 * pt.log(spread + 0.1)),
        ],
    )


def variational_autoencoder():
    """The bound is summed, and the noise of its draws comes with the rows."""
    x, noise = pt.matrix("x"), pt.matrix("noise")
    encoder, spread, decoder = (
        parameter("encoder", 4, 2),
        parameter("spread", 4, 2),
        parameter("decoder", 2, 4),
    )
    mean, log_scale = x @ encoder, x @ spread
    z = mean + pt.exp(log_scale) * noise
    divergence = 0.5 * pt.sum(mean**2 + pt.exp(2 * log_scale) - 1 - 2 * log_scale)
    loss = 0.01 * (pt.sum((z @ decoder - x) ** 2) + divergence)
    return Model(
        [x, noise],
        loss,
        [encoder, spread, decoder],
        lambda n, rng: [0.5 * rng.normal(size=(n, 4)), rng.normal(size=(n, 2))],
    )


def matrix_factorisation():
    """Rows pick from tables that all ranks have; a gradient of a table is a sum over rows."""
    user, item, rating = pt.lvector("user"), pt.lvector("item"), pt.vector("rating")
    users, items, bias = parameter("users", 5, 3), parameter("items", 4, 3), parameter("bias", 4)
    error = pt.sum(users[user] * items[item], axis=1) + bias[item] - rating
    loss = pt.mean(error**2) + 0.01 * (pt.sum(users**2) + pt.sum(items**2))
    return Model(
        [user, item, rating],
        loss,
        [users, items, bias],
        lambda n, rng: [rng.integers(0, 5, n), rng.integers(0, 4, n), rng.normal(size=n)],
    )
