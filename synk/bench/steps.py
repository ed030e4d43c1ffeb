"""A training step as one command on every rank, beside its three parts as commands of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.bench.all_reduce import against
from synk.bench.figures import Section, rows
from synk.bench.rival_rank import repeat
from synk.bench.workbench import Workbench

N_ROWS, N_FEATURES = 256, 1_000
ONE = "gradient, all-reduce, update: one command"
THREE = "the same as three commands"


def train_step(bench: Workbench) -> Section:
    """Measure a step of linear regression, which is so short that the way counts."""
    title = f"A training step, {N_ROWS} rows of {N_FEATURES:,} features, {bench.n_ranks} ranks"
    together, apart = make_steps()
    check(together, apart)
    times = max(1, bench.sizes.repeats // 3)
    comparison = bench.compare(
        title,
        {ONE: lambda: repeat(together, times), THREE: lambda: repeat(apart, times)},
    )
    return Section(title, rows(comparison, against(comparison, {"× one command": ONE}), {}))


def make_steps() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a step as one command and as three; both return the loss."""
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.fvector("y")
    weights = pytensor.shared(np.zeros(N_FEATURES, "float32"), name="weights")
    flat = pytensor.shared(np.zeros(N_FEATURES, "float32"), name="gradient")
    loss = ((x @ weights - y) ** 2).mean()
    gradient = synk.function([x, y], loss, updates=[(flat, pytensor.grad(loss, weights))], name="gradient")
    update = synk.function([], updates=[(weights, weights - np.float32(1e-4) * flat)], name="update")
    step = synk.sequence(gradient, (synk.all_reduce, flat), update, name="step")
    inputs = [
        synk.data(rng.normal(size=shape).astype("float32")) for shape in [(N_ROWS, N_FEATURES), (N_ROWS,)]
    ]

    def apart() -> Any:
        found = gradient(*inputs)
        synk.all_reduce(flat)
        update()
        return found

    return lambda: step(*inputs), apart


def check(together: Callable[[], Any], apart: Callable[[], Any]) -> None:
    """Raise RuntimeError unless the loss falls with each step, whichever way it is made."""
    losses = [float(step()) for step in (together, apart, together, apart)]
    if sorted(losses, reverse=True) != losses:
        raise RuntimeError(f"the loss does not fall: {losses}")
