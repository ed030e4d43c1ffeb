"""Ten models of PyMC for benchmarks, with data that are made up.

MODELS[name] -> built(write) -> pm.Model
"""

from __future__ import annotations

from typing import Any

import numpy as np


def schools(pm: Any) -> None:
    """Write the eight schools, effects as multiples of their spread."""
    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    mean, spread, offset = pm.Normal("mean", 0, 5), pm.HalfCauchy("spread", 5), pm.Normal("offset", shape=8)
    pm.Normal("y", mean + spread * offset, errors, observed=effects)


def glm(pm: Any, n_rows: int, first: int = 0, n_groups: int = 50) -> None:
    """Write a logistic regression with an intercept for each group, of rows from the first on."""
    rng = np.random.default_rng(1)
    intercepts = rng.normal(0.5, 0.8, n_groups)
    group, x = rng.integers(0, n_groups, first + n_rows), rng.normal(size=(first + n_rows, 3))
    p = 1 / (1 + np.exp(-intercepts[group] - x @ [0.5, -0.5, 0.2]))
    y = rng.uniform(size=first + n_rows) < p
    group, x, y = group[first:], x[first:], y[first:]
    centre, spread = pm.Normal("centre"), pm.HalfNormal("spread")
    offset, slopes = pm.Normal("offset", shape=n_groups), pm.Normal("slopes", shape=3)
    logit = centre + spread * offset[group] + x @ slopes
    pm.Bernoulli("y", logit_p=logit, observed=y.astype("int64"))


def glm_1k(pm: Any) -> None:
    """Write the regression with 1,000 rows."""
    glm(pm, 1000)


def glm_100k(pm: Any) -> None:
    """Write the regression with 100,000 rows."""
    glm(pm, 100_000)


def ordinal(pm: Any, n_rows: int = 1000) -> None:
    """Write a regression on ordered answers."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n_rows, 3))
    y = np.digitize(x @ [1.0, -0.5, 0.2] + rng.logistic(size=n_rows), [-1.0, 0.5, 2.0])
    ordered = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
    pm.OrderedLogistic("y", eta=x @ pm.Normal("slopes", shape=3), cutpoints=cuts, observed=y)


def inflated(pm: Any, n_rows: int = 2000) -> None:
    """Write a regression on counts, of which a share is zero for another reason."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n_rows, 3))
    y = rng.poisson(np.exp(0.5 + x @ [0.3, -0.3, 0.1])) * (rng.uniform(size=n_rows) < 0.7)
    level, slopes = pm.Normal("level"), pm.Normal("slopes", 0, 0.5, shape=3)
    rate = pm.math.exp(level + x @ slopes)
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("share", 2, 2), mu=rate, observed=y)


def mixture(pm: Any, n_rows: int = 1000) -> None:
    """Write a mixture of two normals, the lower one first."""
    rng = np.random.default_rng(4)
    y = np.where(rng.uniform(size=n_rows) < 0.3, rng.normal(-2, 1, n_rows), rng.normal(2, 1, n_rows))
    ordered = pm.distributions.transforms.ordered
    centres = pm.Normal("centres", 0, 3, shape=2, transform=ordered, initval=[-1.0, 1.0])
    weights, scale = pm.Dirichlet("weights", np.ones(2)), pm.HalfNormal("scale", 2)
    pm.NormalMixture("y", w=weights, mu=centres, sigma=scale, observed=y)


def ar5(pm: Any, n_rows: int = 500) -> None:
    """Write an autoregression on the five values before."""
    rng = np.random.default_rng(5)
    lags, y = np.array([0.4, -0.2, 0.1, 0.1, -0.1]), np.zeros(n_rows)
    for t in range(5, n_rows):
        y[t] = lags @ y[t - 5 : t][::-1] + rng.normal()
    begin = pm.Normal.dist(0, 1, shape=5)
    noise = pm.HalfNormal("noise")
    pm.AR("y", pm.Normal("lags", 0, 0.3, shape=5), sigma=noise, init_dist=begin, observed=y)


def garch(pm: Any, n_rows: int = 500) -> None:
    """Write GARCH(1, 1) of returns whose variance follows theirs."""
    rng = np.random.default_rng(6)
    y, variance = np.zeros(n_rows), 1.0
    for t in range(n_rows):
        y[t] = rng.normal(0, variance**0.5)
        variance = 0.1 + 0.2 * y[t] ** 2 + 0.7 * variance
    base, shock, memory = pm.HalfNormal("base"), pm.Beta("shock", 2, 5), pm.Beta("memory", 5, 2)
    pm.GARCH11("y", omega=base, alpha_1=shock, beta_1=memory, initial_vol=1.0, observed=y)


def process(pm: Any, n_rows: int = 200) -> None:
    """Write the regression on a Gaussian process, whose values are integrated out."""
    x = np.linspace(0, 1, n_rows)
    y = np.sin(6 * x) + np.random.default_rng(7).normal(0, 0.2, n_rows)
    length, height, noise = pm.Gamma("length", 2, 4), pm.HalfNormal("height"), pm.HalfNormal("noise")
    gp = pm.gp.Marginal(cov_func=height**2 * pm.gp.cov.ExpQuad(1, length))
    gp.marginal_likelihood("y", X=x[:, None], y=y, sigma=noise)


def responses(pm: Any, n_persons: int = 100, n_items: int = 500) -> None:
    """Write answers of persons to items, of other difficulties and slopes each."""
    rng = np.random.default_rng(8)
    logit = rng.lognormal(0, 0.3, n_items) * (rng.normal(size=(n_persons, 1)) - rng.normal(size=n_items))
    y = (rng.uniform(size=logit.shape) < 1 / (1 + np.exp(-logit))).astype("int64")
    ability = pm.Normal("ability", shape=n_persons)
    difficulty, slope = pm.Normal("difficulty", shape=n_items), pm.LogNormal("slope", 0, 0.3, shape=n_items)
    pm.Bernoulli("y", logit_p=slope * (ability[:, None] - difficulty), observed=y)


MODELS = {
    one.__name__: one
    for one in (
        schools,
        glm_1k,
        glm_100k,
        ordinal,
        inflated,
        mixture,
        ar5,
        garch,
        process,
        responses,
    )
}


def built(write: Any, *arguments: Any) -> Any:
    """Return the model that a function of this module writes."""
    import pymc as pm

    with pm.Model() as model:
        write(pm, *arguments)
    return model
