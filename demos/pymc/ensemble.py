"""Sample a model by a sampler that knows nothing of ranks: emcee's ensemble of walkers.

``compile_logp_dlogp`` makes the log-density a plain function of a vector, and all ranks evaluate it together,
each for its houses. Walkers need no gradient; samplers that do get it from the same call.

    .venv/bin/python -m pip install emcee
    .venv/bin/python demos/pymc/ensemble.py
"""

from __future__ import annotations

import argparse

import arviz as az
import numpy as np
from radon import build, houses

import synk
from synk.extensions.pymc import LogDensity, compile_logp_dlogp

try:
    import emcee
except ModuleNotFoundError:
    raise SystemExit("this demo samples by emcee, which is not installed. Use pip install emcee") from None


def walked(density: LogDensity, n_walkers: int, n_steps: int) -> np.ndarray:
    """Return where walkers were in the second half of their steps, as (walkers, steps, size)."""
    moves = [(emcee.moves.DEMove(), 0.8), (emcee.moves.DESnookerMove(), 0.2)]
    sampler = emcee.EnsembleSampler(n_walkers, density.size, lambda vector: density(vector)[0], moves=moves)
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc([density.initial_point(seed) for seed in range(n_walkers)], n_steps)
    return sampler.get_chain(discard=n_steps // 2).swapaxes(0, 1)


def main() -> None:
    """Sample, and check what was put in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--counties", type=int, default=3)
    parser.add_argument("--walkers", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--ranks", type=int, help="by default one for each core")
    options = parser.parse_args()

    model = build(*houses(options.rows, options.counties), options.counties)
    synk.fork(options.ranks)
    density = compile_logp_dlogp(model, shard="house")
    draws = density.tree(walked(density, options.walkers, options.steps))
    synk.close()

    print(az.summary(draws, var_names=["centre", "spread", "effect", "noise"]))
    for name, true in (("effect", -0.6), ("noise", 0.7)):
        values = draws.posterior[name].values
        assert abs(values.mean() - true) < 5 * values.std()


if __name__ == "__main__":
    main()
