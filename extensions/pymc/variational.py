"""Approximate a posterior by independent normals, with the rows of a model on all ranks if asked for.

fit -> an Evaluation at random points -> steps of mean and log standard deviation -> MeanField -> draws
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.util import get_random_generator

import synk
from synk.extensions.fit.signals import StoppedBySignals
from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.results import tree_of_points
from synk.extensions.pymc.runs import Stop, evaluating, model_of
from synk.extensions.pymc.starts import points_of, start_of


class Adam:
    """Adam's direction, from decaying averages of gradients and of their squares.

    References
    ----------
    Kingma and Ba (2015), Adam: a method for stochastic optimization, ICLR.
    """

    decays = (0.9, 0.999)

    def __init__(self, shape: tuple[int, ...]):
        self._averages = np.zeros((2, *shape))
        self._n_steps = 0

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        """Update the averages with a gradient, and return the direction of the next step."""
        self._n_steps += 1
        for average, decay, new in zip(self._averages, self.decays, (gradient, gradient**2), strict=True):
            average += (1 - decay) * (new - average)
        mean, square = (
            average / (1 - decay**self._n_steps)
            for average, decay in zip(self._averages, self.decays, strict=True)
        )
        direction: np.ndarray = mean / (np.sqrt(square) + 1e-8)
        return direction


@dataclass
class MeanField:
    """Independent normals on the unconstrained scale; made by `fit`.

    Attributes
    ----------
    mean, std : ndarray, shape (size,)
        Of each unconstrained value, in the order of `LogDensity`.
    losses : ndarray, shape (steps,)
        The negative evidence lower bound, estimated from one point a step.

    See Also
    --------
    synk.extensions.pymc.fit : makes it.

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import fit
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> normals = fit(2000, random_seed=1, model=model)
    >>> bool(abs(normals.std[0] - 10**-0.5) < 0.1), len(normals.losses)
    (True, 2000)
    """

    mean: np.ndarray
    std: np.ndarray
    losses: np.ndarray
    prepared: Prepared

    def sample(self, draws: int = 1000, random_seed: Any = None) -> Any:
        """Return draws, as `sample` returns them, as one chain."""
        noise = get_random_generator(random_seed).normal(size=(1, draws, self.mean.size))
        return tree_of_points(self.prepared, self.mean + self.std * noise)


def fit(
    n: int = 10_000,
    *,
    learning_rate: float = 0.02,
    random_seed: Any = None,
    shard: str | bool | None = None,
    cores: int | None = None,
    model: Any = None,
) -> MeanField:
    """Fit independent normals to a posterior by ADVI, with Adam.

    Each step evaluates the gradient at one random point ``mean + exp(log_std) * z``, and goes up the evidence
    lower bound. The learning rate falls to a hundredth along half a cosine. ^C ends it after the step that
    runs.

    Parameters
    ----------
    n : int
        Steps.
    learning_rate : float
        Of the first step, on the unconstrained scale.
    random_seed : int, sequence of int or Generator, optional
    shard, cores
        As in `sample`: a dimension whose rows are split over the ranks. Without ``shard`` this process
        computes alone.
    model : pymc.Model, optional
        By default that of the ``with`` block.

    Returns
    -------
    MeanField

    Raises
    ------
    pymc.exceptions.SamplingError
        If the log-density is not finite where the fit begins, or no step was taken.

    See Also
    --------
    synk.extensions.pymc.sample : draws from the posterior itself.

    References
    ----------
    Kucukelbir et al. (2017), Automatic differentiation variational inference, JMLR 18(14).

    Examples
    --------
    >>> import pymc as pm
    >>> from synk.extensions.pymc import fit
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 10)
    ...     y = pm.Normal("y", mu, 1, observed=np.arange(10.0))
    >>> normals = fit(2000, random_seed=1, model=model)
    >>> bool(abs(normals.mean[0] - 4.5) < 0.1)
    True
    """
    prepared = Prepared(model_of(model))
    generator, stop = get_random_generator(random_seed), Stop()
    losses, taken = [], 0
    with evaluating(prepared, shard, cores) as evaluate, StoppedBySignals(stop):
        start = start_of(prepared, evaluate, points_of(prepared, generator))
        position = np.stack([start, np.full(start.size, -1.0)])
        adam = Adam(position.shape)
        for step in range(n):
            if stop.stopped:
                break
            mean, log_std = position
            noise = generator.normal(size=mean.size)
            value, gradient = evaluate(mean + np.exp(log_std) * noise)
            losses.append(-value - log_std.sum() - mean.size * 0.5 * np.log(2 * np.pi * np.e))
            if np.isfinite(value) and np.isfinite(gradient).all():
                ascent = np.stack([gradient, gradient * np.exp(log_std) * noise + 1])
                rate = learning_rate * (0.505 + 0.495 * np.cos(np.pi * step / n))
                position = position + rate * adam.direction(ascent)
                taken += 1
    _check_steps(len(losses), taken)
    return MeanField(position[0], np.exp(position[1]), np.array(losses), prepared)


def _check_steps(n_points: int, taken: int) -> None:
    """Raise if no step was taken, and warn if some were not."""
    reason = (
        f"the log-density or its gradient was not finite at {n_points - taken} of {n_points} random points"
    )
    if not taken:
        raise pm.exceptions.SamplingError(f"fit has taken no step: {reason}")
    if taken < n_points:
        warnings.warn(f"fit has left out steps: {reason}", synk.SynkWarning, stacklevel=3)
