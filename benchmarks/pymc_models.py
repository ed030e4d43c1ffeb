"""Compare the ways to sample PyMC's models: seconds to the first draw, microseconds a step, ESS a second.

    python benchmarks/pymc_models.py [--models schools glm_1k ...] [--ways synk nutpie ...] [--quick]

``synk`` is `synk.extensions.pymc`; ``nutpie`` and ``jax`` are nutpie's sampler on Numba and on JAX; ``pymc``
and ``c`` are PyMC's own sampler in its default mode, which is Numba's, and in C.

Each number is of a process of its own, with a time limit, and with the caches of its model and way: the first
draw with empty ones (cold), then with full ones (warm). Imports and the building of the model are left out;
the first draw is one after one step of warm-up, compilation included. A gradient is a call from Python, of
PyTensor's function for all ways but synk; a step is one as the sampler takes it, the chains' seconds of
sampling over all their steps, warm-up included; "all in" is the steps a second of all chains where the first
draw comes after the cold seconds. ESS is the least of all variables; its seconds are those of sampling alone,
with as many cores as chains. "off" is the largest difference between a posterior mean and PyMC's own, in
Monte-Carlo standard errors of the difference: beyond 4 it is marked. Ways take turns, so a busy machine is
busy for all. At the end, geometric means over the models, in nutpie's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from pymc_ten import MODELS, built

REFERENCE = "pymc"  # whose posterior means the others are held against
LIMIT = 4  # standard errors
BESIDE = "nutpie"  # whose time the geometric means are of

# --- ways ------------------------------------------------------------------------------------------------


def by_synk(model: Any, draws: int, tune: int, chains: int) -> Any:
    from synk.extensions.pymc import sample

    options = {"progressbar": False, "compute_convergence_checks": False, "discard_tuned_samples": False}
    options["random_seed"] = 1
    return sample(draws, tune=tune, chains=chains, cores=chains, model=model, **options)


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
        discard_tuned_samples=False,
        nuts_sampler="pymc",
        **options,
    )


def by_c(*arguments: Any) -> Any:
    return by_pymc(*arguments, backend="c")


WAYS = {"synk": by_synk, "nutpie": by_nutpie, "pymc": by_pymc, "c": by_c, "jax": by_jax}
MODES = {"nutpie": "NUMBA", "pymc": "NUMBA", "c": "CVM", "jax": "JAX"}
MODULES = {"synk": ["synk.extensions.pymc"], "nutpie": ["nutpie", "numba"], "jax": ["nutpie", "jax"]}


def gradient_of(way: str, model: Any) -> Callable[[], Any]:
    """Return a function without arguments that evaluates the log-density and its gradient."""
    if way == "synk":
        from synk.extensions.pymc import compile_logp_dlogp

        density = compile_logp_dlogp(model)
        vector = density.initial_point(1)
        return lambda: density(vector)
    from pymc.blocking import DictToArrayBijection

    function = model.logp_dlogp_function(mode=MODES[way], ravel_inputs=True)
    function.set_extra_values({})
    function._pytensor_function.trust_input = True
    vector = DictToArrayBijection.map(model.initial_point()).data
    return lambda: function._pytensor_function(vector)


# --- what one process measures ----------------------------------------------------------------------------


def first(way: str, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the seconds to the first draw."""
    for module in MODULES.get(way, ["numba"]):
        import_module(module)
    began = time.perf_counter()
    WAYS[way](model, 1, 1, 1)
    return {"seconds": time.perf_counter() - began}


def gradient(way: str, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the microseconds of a gradient: the best of five times a tenth of a second."""
    evaluate = gradient_of(way, model)
    evaluate()
    times = []
    for _ in range(5):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < 0.1:
            evaluate()
            count += 1
        times.append((time.perf_counter() - began) / count)
    return {"microseconds": min(times) * 1e6}


def posterior(way: str, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Measure effective samples a second and microseconds a step; return means and their errors too."""
    import arviz as az

    draws = WAYS[way](model, options.draws, options.tune, options.chains)
    found = {name: values for name, values in draws.posterior.data_vars.items() if not name.endswith("__")}
    means = {name: values.mean(("chain", "draw")).values for name, values in found.items()}
    ess, errors = az.ess(draws).dataset, az.mcse(draws).dataset
    seconds, steps = draws.posterior.attrs["sampling_time"], n_steps(draws)
    return {
        "ess": min(float(ess[name].min()) for name in found) / seconds,
        "step": 1e6 * seconds * options.chains / steps,
        "seconds": seconds,
        "steps": steps,
        "means": {name: values.ravel().tolist() for name, values in means.items()},
        "errors": {name: errors[name].values.ravel().tolist() for name in found},
    }


def n_steps(draws: Any) -> float:
    """Return how many gradients all chains have taken."""
    stats = [draws[group] for group in ("warmup_sample_stats", "sample_stats")]
    return sum(float(one["n_steps" if "n_steps" in one else "tree_size"].sum()) for one in stats)


CELLS = {"cold": first, "warm": first, "gradient": gradient, "posterior": posterior}

# --- the table -------------------------------------------------------------------------------------------


def in_a_process(cell: str, way: str, name: str, caches: str, options: argparse.Namespace) -> Any:
    """Measure in a process of its own; return a dictionary, or in a word what went wrong."""
    environment = {
        **os.environ,
        "SYNK_CACHE": f"{caches}/synk",
        "NUMBA_CACHE_DIR": f"{caches}/numba",
        "OPENBLAS_NUM_THREADS": "1",  # chains have a core each
        "OMP_NUM_THREADS": "1",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor",
        "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-W", "ignore", __file__, "--one", cell, way, name]
    command += [f"--{one}={getattr(options, one)}" for one in ("draws", "tune", "chains")]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # and what it has forked
        started.communicate()
        return f"> {options.seconds} s"
    if started.returncode:
        print((err.strip().splitlines() or ["no word"])[-1][:110], file=sys.stderr)
        return "failed"
    return json.loads(out.splitlines()[-1])


def furthest(found: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """Return the largest difference of means, in standard errors of the difference."""
    largest = 0.0
    for name, means in found["means"].items():
        if name in reference["means"]:
            difference = np.subtract(means, reference["means"][name])
            error = np.hypot(found["errors"][name], reference["errors"][name])
            largest = max(largest, float(np.abs(difference / error).max()))
    return largest


def in_words(cells: Mapping[str, Any], reference: Any) -> list[str]:
    """Return the columns of a row; a cell that went wrong says how."""
    columns = [
        one if isinstance(one, str) else f"{one[unit]:.{digits}f}"
        for cell, unit, digits in (
            ("cold", "seconds", 1),
            ("warm", "seconds", 1),
            ("gradient", "microseconds", 0),
            ("posterior", "step", 0),
            ("all in", "rate", 0),
            ("posterior", "ess", 0),
        )
        for one in [cells[cell]]
    ]
    if isinstance(cells["posterior"], str) or not isinstance(reference, dict):
        return [*columns, "-"]
    off = furthest(cells["posterior"], reference)
    return [*columns, f"{off:.1f}" + (" !" if off > LIMIT else "")]


def all_in(cells: Mapping[str, Any]) -> Any:
    """Return the steps a second of sampling with compilation in, if both cells went well."""
    cold, drawn = cells["cold"], cells["posterior"]
    if isinstance(cold, str) or isinstance(drawn, str):
        return "-"
    return {"rate": drawn["steps"] / (cold["seconds"] + drawn["seconds"])}


def means(found: Mapping[tuple[str, str], Mapping[str, Any]], way: str) -> list[str]:
    """Return the models that a way and nutpie have done, and geometric means of steps a second and all in."""
    pairs = [(found[name, way], found[name, BESIDE]) for name in dict.fromkeys(name for name, _ in found)]
    pairs = [pair for pair in pairs if "-" not in [cells["all in"] for cells in pair]]
    steps = [there["posterior"]["step"] / here["posterior"]["step"] for here, there in pairs]
    rates = [here["all in"]["rate"] / there["all in"]["rate"] for here, there in pairs]
    return [
        str(len(pairs)),
        *(f"{np.exp(np.mean(np.log(one))):.2f}" if pairs else "-" for one in (steps, rates)),
    ]


def measured(name: str, ways: list[str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the cells of each way of one model; the ways take turns."""
    found: dict[str, dict[str, Any]] = {way: {} for way in ways}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
        for cell in CELLS:
            for way in ways:
                found[way][cell] = in_a_process(cell, way, name, f"{caches}/{way}", options)
    return {way: {**cells, "all in": all_in(cells)} for way, cells in found.items()}


def main() -> None:
    """Measure the cells and print a row for each model and way, as soon as its model is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--tune", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900, help="the limit of a process")
    parser.add_argument("--quick", action="store_true", help="so few draws that only failures tell something")
    parser.add_argument("--one", nargs=3, metavar=("CELL", "WAY", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.draws, options.tune, options.seconds = 10, 10, min(options.seconds, 120)
    if options.one:
        cell, way, name = options.one
        print(json.dumps(CELLS[cell](way, built(MODELS[name]), options)))
        return
    ways = options.ways
    if "jax" in ways and not find_spec("jax"):
        ways = [way for way in ways if way != "jax"]
        print("jax is not installed: its column is left out")
    row = "{:10} {:7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8}".format
    print(row("model", "way", "cold s", "warm s", "gradient", "step", "all in", "ESS/s", "off"))
    everything = {}
    for name in options.models:
        found = measured(name, ways, options)
        reference = found.get(REFERENCE, {}).get("posterior")
        for way in ways:
            print(row(name, way, *in_words(found[way], reference)), flush=True)
            everything[name, way] = found[way]
    for way in ways if BESIDE in ways else []:
        models, steps, with_compilation = means(everything, way)
        print(f"{way}: {steps} x {BESIDE}'s steps a second, {with_compilation} x all in ({models} models)")


if __name__ == "__main__":
    main()
