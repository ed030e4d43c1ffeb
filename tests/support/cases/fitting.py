"""A small training for tests of the loop: a linear model of float64, with noise where it is asked for."""

from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.extensions import train, updates

N_ROWS = 47  # no multiple of batches or ranks


def make(noise=False, rule=updates.adam, learning_rate=0.05, outputs=None, **options):
    """Return a step, data, and a function for validation with its data; synk.fork comes before."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(N_ROWS + 11, 4))
    targets = rows @ np.arange(4.0) + 0.1 * rng.normal(size=len(rows))
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(4), name="w")
    error = x @ w - y
    loss, of_train, drawn = (error**2).mean(), (error**2).mean(), []
    if noise:
        state = pytensor.shared(np.random.default_rng(5), name="state")
        next_state, draws = pt.random.normal(size=(x.shape[0],), rng=state, return_next_rng=True)
        of_train, drawn = ((error + 0.1 * draws) ** 2).mean(), [(state, next_state)]
    step = train.make_train_function(
        of_train, [w], [x, y], rule, learning_rate=learning_rate, outputs=outputs, updates=drawn, **options
    )
    evaluate = synk.function([x, y], [loss, abs(error).max()])
    return SimpleNamespace(
        w=w,
        step=step,
        data=(rows[:N_ROWS], targets[:N_ROWS]),
        evaluate=evaluate,
        validation=(evaluate, (rows[N_ROWS:], targets[N_ROWS:])),
    )


def numbers(history):
    """Return the metrics of a history, without the times."""
    times = ("seconds", "rows_per_second")
    return [{name: value for name, value in epoch.items() if name not in times} for epoch in history.epochs]
