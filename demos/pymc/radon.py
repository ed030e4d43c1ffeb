"""Sample a hierarchical model with all cores, and draw traces and intervals.

A model of a measurement in houses of many counties, on synthetic data of that kind: levels of counties around
a common one, and the effect of the floor. ``--shard`` has all ranks share the rows of one chain; by default
each runs chains of its own.

    .venv/bin/python demos/pymc/radon.py --plot radon.png
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pymc as pm

from synk.extensions.pymc import sample


def houses(n_rows: int, n_counties: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return county, floor and measurement of each house; the floor lowers a measurement by 0.6."""
    rng = np.random.default_rng(seed)
    county, floor = rng.integers(0, n_counties, n_rows), rng.integers(0, 2, n_rows)
    levels = rng.normal(1.3, 0.4, n_counties)
    return county, floor, levels[county] - 0.6 * floor + rng.normal(0, 0.7, n_rows)


def build(county: np.ndarray, floor: np.ndarray, measured: np.ndarray, n_counties: int) -> pm.Model:
    """Return the model, with a dimension for counties and one for houses."""
    with pm.Model(coords={"county": range(n_counties), "house": range(len(measured))}) as model:
        on_floor = pm.Data("on_floor", floor.astype("float64"), dims="house")
        centre = pm.Normal("centre")
        spread = pm.HalfNormal("spread")
        offset = pm.Normal("offset", dims="county")
        level = pm.Deterministic("level", centre + spread * offset, dims="county")
        effect = pm.Normal("effect")
        noise = pm.HalfNormal("noise")
        pm.Normal("measured", level[county] + effect * on_floor, noise, observed=measured, dims="house")
    return model


def plot(draws, path: str) -> None:
    """Write traces of the common parameters, and intervals of all levels beside them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = ("centre", "spread", "effect", "noise")
    figure, axes = plt.subplot_mosaic([[name, "levels"] for name in names], figsize=(10, 7))
    for name in names:
        axes[name].plot(draws.posterior[name].values.T, linewidth=0.4)
        axes[name].set_ylabel(name)
    levels = draws.posterior["level"].stack(sample=("chain", "draw"))
    low, middle, high = np.quantile(levels.values, [0.03, 0.5, 0.97], axis=1)
    rows = np.argsort(middle)
    axes["levels"].hlines(range(len(rows)), low[rows], high[rows], linewidth=2)
    axes["levels"].plot(middle[rows], range(len(rows)), "k.")
    axes["levels"].set(title="level of each county, 94% interval", yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Sample, check what was put in, and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--counties", type=int, default=40)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--cores", type=int)
    parser.add_argument("--shard", action="store_true", help="split the houses of one chain over the ranks")
    parser.add_argument("--plot", help="a file for traces and intervals")
    options = parser.parse_args()

    model = build(*houses(options.rows, options.counties), options.counties)
    began = time.perf_counter()
    draws = sample(
        options.draws,
        chains=options.chains,
        cores=options.cores,
        shard="house" if options.shard else None,
        random_seed=1,
        model=model,
    )
    seconds = time.perf_counter() - began
    print(f"{options.chains} chains of {options.draws} draws in {seconds:.1f} s, compilation included")
    for name, true in (("effect", -0.6), ("noise", 0.7)):
        values = draws.posterior[name].values
        print(f"{name}: {values.mean():.3f} ± {values.std():.3f}, of data made with {true}")
        assert abs(values.mean() - true) < 5 * values.std()
    if options.plot:
        plot(draws, options.plot)
        print(f"wrote {options.plot}")


if __name__ == "__main__":
    main()
