"""Compare the ways to sample PyMC's models: seconds to the first draw, microseconds a gradient, ESS a second.

    python benchmarks/pymc_models.py [--models schools radon ...] [--ways synk nutpie ...] [--rounds 1]

Each measurement is a process of its own, with caches of its own: the first with empty ones, the second with
those that the first has left. Imports and the building of the model are left out of the time; the first draw
is one after one step of warm-up, compilation included. ESS is the least of all variables; its seconds are
those of sampling alone, with as many cores as chains. Ways take turns, so a busy machine is busy for all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

CHAINS, DRAWS, TUNE = 2, 300, 300
SECONDS = 900  # for one process


# --- models ----------------------------------------------------------------------------------------------


def schools(pm):
    effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    mean, spread, offset = pm.Normal("mean", 0, 5), pm.HalfCauchy("spread", 5), pm.Normal("offset", shape=8)
    pm.Normal("y", mean + spread * offset, errors, observed=effects)


def radon(pm, n=1000, counties=85):
    rng = np.random.default_rng(0)
    county, floor = rng.integers(0, counties, n), rng.integers(0, 2, n)
    y = rng.normal(1.3, 0.4, counties)[county] - 0.6 * floor + rng.normal(0, 0.7, n)
    centre, spread, offset = pm.Normal("centre"), pm.HalfNormal("spread"), pm.Normal("offset", shape=counties)
    effect, noise = pm.Normal("effect"), pm.HalfNormal("noise")
    pm.Normal("y", centre + spread * offset[county] + effect * floor, noise, observed=y)


def regression(pm, n=1000, k=10):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, k))
    slopes, noise = pm.Normal("slopes", shape=k), pm.HalfNormal("noise")
    pm.Normal("y", x @ slopes, noise, observed=x @ rng.normal(size=k) + rng.normal(size=n))


def logistic(pm, n=20_000, k=10):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, k))
    slopes = pm.Normal("slopes", shape=k)
    p = 1 / (1 + np.exp(-x @ rng.normal(0, 0.3, size=k)))
    pm.Bernoulli("y", logit_p=x @ slopes, observed=rng.uniform(size=n) < p)


def counts(pm, n=2000):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 4))
    slopes, shape = pm.Normal("slopes", 0, 0.5, shape=4), pm.HalfNormal("shape", 2)
    pm.NegativeBinomial(
        "y", mu=pm.math.exp(x @ slopes), alpha=shape, observed=rng.poisson(np.exp(0.3 * x[:, 0]))
    )


def mixture(pm, n=1000):
    rng = np.random.default_rng(4)
    y = np.where(rng.uniform(size=n) < 0.3, rng.normal(-2, 1, n), rng.normal(2, 1, n))
    weights = pm.Dirichlet("weights", np.ones(2))
    ordered = pm.distributions.transforms.ordered
    centres = pm.Normal("centres", 0, 3, shape=2, transform=ordered, initval=[-1.0, 1.0])
    pm.NormalMixture("y", w=weights, mu=centres, sigma=1.0, observed=y)


def ordinal(pm, n=1000):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, 3))
    ordered = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
    slopes = pm.Normal("slopes", shape=3)
    pm.OrderedLogistic("y", eta=x @ slopes, cutpoints=cuts, observed=rng.integers(0, 4, n))


def volatility(pm, n=500):
    returns = np.random.default_rng(6).normal(0, np.exp(np.sin(np.arange(n) / 40)))
    step = pm.Exponential("step", 10)
    path = pm.GaussianRandomWalk("path", sigma=step, init_dist=pm.Normal.dist(0, 1), shape=n)
    pm.StudentT("y", nu=5, sigma=pm.math.exp(path), observed=returns)


def process(pm, n=60):
    x = np.linspace(0, 1, n)
    scale, noise = pm.Gamma("scale", 2, 4), pm.HalfNormal("noise")
    gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, scale))
    gp.marginal_likelihood("y", X=x[:, None], y=np.sin(6 * x), sigma=noise)


def correlated(pm, n=500):
    y = np.random.default_rng(7).multivariate_normal(np.zeros(3), np.eye(3) + 0.5, n)
    factor, _, _ = pm.LKJCholeskyCov("factor", n=3, eta=2, sd_dist=pm.HalfNormal.dist(2, shape=3))
    pm.MvNormal("y", pm.Normal("centre", shape=3), chol=factor, observed=y)


MODELS = (
    schools,
    radon,
    regression,
    logistic,
    counts,
    mixture,
    ordinal,
    volatility,
    process,
    correlated,
)


# --- ways ------------------------------------------------------------------------------------------------


def by_synk(model: Any, draws: int, tune: int, chains: int) -> Any:
    from synk.extensions.pymc import sample

    options = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}
    return sample(model, draws=draws, tune=tune, chains=chains, cores=chains, **options)


def by_nutpie(model: Any, draws: int, tune: int, chains: int, backend: str = "numba") -> Any:
    import nutpie

    compiled = nutpie.compile_pymc_model(model, backend=backend)
    began = time.perf_counter()
    found = nutpie.sample(
        compiled, draws=draws, tune=tune, chains=chains, cores=chains, seed=1, progress_bar=False
    )
    found.posterior.attrs["sampling_time"] = time.perf_counter() - began
    return found


def by_jax(*arguments: Any) -> Any:
    return by_nutpie(*arguments, backend="jax")


def by_pymc(model: Any, draws: int, tune: int, chains: int, **options: Any) -> Any:
    import pymc as pm

    return pm.sample(
        draws,
        tune=tune,
        chains=chains,
        cores=chains,
        model=model,
        random_seed=1,
        progressbar=False,
        compute_convergence_checks=False,
        nuts_sampler="pymc",
        **options,
    )


def by_c(*arguments: Any) -> Any:
    return by_pymc(*arguments, backend="c")


WAYS = {"synk": by_synk, "nutpie": by_nutpie, "pymc": by_pymc, "c": by_c, "jax": by_jax}
MODES = {"nutpie": "NUMBA", "pymc": "NUMBA", "c": "CVM", "jax": "JAX"}


def gradient_of(way: str, model: Any) -> Any:
    """Return a function without arguments that evaluates the log-density and its gradient."""
    if way == "synk":
        from synk.extensions.pymc import compile_logp_dlogp

        density = compile_logp_dlogp(model)
        vector = density.initial_point(1)
        return lambda: density(vector)
    function = model.logp_dlogp_function(mode=MODES[way], ravel_inputs=True)
    function.set_extra_values({})
    from pymc.blocking import DictToArrayBijection

    vector = DictToArrayBijection.map(model.initial_point()).data
    return lambda: function._pytensor_function(vector)


def measure(way: str, name: str, warm: bool) -> dict[str, float]:
    """Measure one model in this process; a warm one also its gradients and draws."""
    import arviz as az
    import pymc as pm

    with pm.Model() as model:
        next(one for one in MODELS if one.__name__ == name)(pm)
    began = time.perf_counter()
    WAYS[way](model, 1, 1, 1)
    found = {"first": time.perf_counter() - began}
    if warm:
        evaluate = gradient_of(way, model)
        evaluate()
        times = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(100):
                evaluate()
            times.append((time.perf_counter() - began) / 100)
        found["gradient"] = min(times)
        draws = WAYS[way](model, DRAWS, TUNE, CHAINS)
        ess = min(float(values.min()) for values in az.ess(draws).dataset.data_vars.values())
        found["ess"] = ess / draws.posterior.attrs["sampling_time"]
    return found


def in_a_process(way: str, name: str, caches: str, warm: bool) -> dict[str, float] | str:
    """Measure in a process of its own; return what went wrong if it did."""
    environment = {
        **os.environ,
        "SYNK_CACHE": f"{caches}/synk",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
    }
    command = [sys.executable, "-W", "ignore", __file__, "--one", way, name, "warm" if warm else "cold"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1][:60]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [one.__name__ for one in MODELS]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["synk", "nutpie"])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, name, warm = options.one
        print(json.dumps(measure(way, name, warm == "warm")))
        return
    ways = [way for way in options.ways if way != "jax" or find_spec("jax")]
    print(f"{'model':12}{'way':8}{'cold s':>8}{'warm s':>8}{'us/gradient':>13}{'ESS/s':>8}")
    for name in options.models:
        for way in ways:
            with tempfile.TemporaryDirectory() as caches:
                cold, warm = (in_a_process(way, name, caches, warm) for warm in (False, True))
            if isinstance(cold, str) or isinstance(warm, str):
                print(f"{name:12}{way:8}  {cold if isinstance(cold, str) else warm}", flush=True)
                continue
            print(
                f"{name:12}{way:8}{cold['first']:8.1f}{warm['first']:8.1f}{warm['gradient'] * 1e6:13.0f}"
                f"{warm['ess']:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
