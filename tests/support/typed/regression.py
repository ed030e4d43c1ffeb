"""Draw from the posterior of a PyMC model, as a user's script with annotations would."""

from typing import assert_type

import numpy as np
import pymc as pm

import synk
from synk.extensions.pymc import LogDensity, MeanField, compile_logp_dlogp, find_MAP, fit, sample


def main() -> float:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    with pm.Model(coords={"row": range(200)}) as model:
        slope, noise = pm.Normal("slope"), pm.HalfNormal("noise")
        pm.Normal("y", slope * x, noise, observed=0.5 * x + rng.normal(size=200), dims="row")
        top = find_MAP()
    assert_type(top, dict[str, np.ndarray])

    synk.fork(2)
    draws = sample(50, tune=50, model=model, shard="row", chains=1, random_seed=1, progressbar=False)
    density = compile_logp_dlogp(model, shard="row")
    assert_type(density, LogDensity)
    value, gradient = density(density.initial_point(seed=1))
    assert_type(value, float)
    assert_type(gradient, np.ndarray)
    assert_type(density.split(gradient), dict[str, np.ndarray])
    normal = fit(100, model=model, random_seed=1)
    assert_type(normal, MeanField)
    synk.close()
    return float(draws.posterior["slope"].mean())


if __name__ == "__main__":
    print(main())
