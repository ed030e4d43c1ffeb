"""Networks over time and over tokens: each row is a sequence of its own."""

import pytensor
import pytensor.tensor as pt

from support.exact.models.model import Model, parameter

TIMES, FEATURES, WIDTH = 5, 2, 3


def _sequences(n, rng):
    """Return sequences, their masks, at least one time of each, and targets."""
    lengths = rng.integers(1, TIMES + 1, n)
    mask = 1.0 * (range(TIMES) < lengths[:, None])
    return [rng.normal(size=(n, TIMES, FEATURES)), mask, rng.normal(size=(n, TIMES))]


def masked_recurrent_network():
    """The loss is a mean over the times that count, of which sequences have different numbers."""
    x, mask, y = pt.tensor3("x"), pt.matrix("mask"), pt.matrix("y")
    w_in, w, w_out = parameter("w_in", FEATURES, WIDTH), parameter("w", WIDTH, WIDTH), parameter("out", WIDTH)

    def step(x_t, mask_t, h):
        new = pt.tanh(x_t @ w_in + h @ w)
        return pt.switch(mask_t[:, None] > 0, new, h)

    h = pytensor.scan(
        step,
        sequences=[x.dimshuffle(1, 0, 2), mask.T],
        outputs_info=[pt.zeros((x.shape[0], WIDTH))],
        return_updates=False,
    )
    loss = pt.sum(mask.T * (h @ w_out - y.T) ** 2) / pt.sum(mask)
    return Model([x, mask, y], loss, [w_in, w, w_out], _sequences)


def long_short_term_memory():
    x, y = pt.tensor3("x"), pt.matrix("y")
    w, u, b = (
        parameter("w", FEATURES, 4 * WIDTH),
        parameter("u", WIDTH, 4 * WIDTH),
        parameter("b", 4 * WIDTH),
    )
    w_out = parameter("out", WIDTH, TIMES)

    def step(x_t, h, c):
        gates = x_t @ w + h @ u + b
        i, f, o = (pt.sigmoid(gates[:, k * WIDTH : (k + 1) * WIDTH]) for k in range(3))
        c = f * c + i * pt.tanh(gates[:, 3 * WIDTH :])
        return o * pt.tanh(c), c

    start = pt.zeros((x.shape[0], WIDTH))
    h, _ = pytensor.scan(
        step, sequences=[x.swapaxes(0, 1)], outputs_info=[start, start], return_updates=False
    )
    loss = pt.mean((h[-1] @ w_out - y) ** 2)
    return Model([x, y], loss, [w, u, b, w_out], lambda n, rng: _sequences(n, rng)[::2])


def attention_over_tokens():
    tokens, y = pt.tensor3("tokens"), pt.vector("y")
    queries, keys, values = (parameter(name, FEATURES, WIDTH) for name in ("queries", "keys", "values"))
    w_out = parameter("out", WIDTH)
    q, k, v = tokens @ queries, tokens @ keys, tokens @ values
    scores = q @ k.transpose(0, 2, 1) / WIDTH**0.5
    attended = pt.special.softmax(scores, axis=-1) @ v
    loss = pt.mean((pt.mean(attended, axis=1) @ w_out - y) ** 2)
    return Model(
        [tokens, y],
        loss,
        [queries, keys, values, w_out],
        lambda n, rng: [rng.normal(size=(n, TIMES, FEATURES)), rng.normal(size=n)],
    )
