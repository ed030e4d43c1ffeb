"""Log-densities and their gradients, as samplers call them: synk beside PyTensor's NUMBA and C modes.

    python benchmarks/densities.py                      all models, this linker and NUMBA
    python benchmarks/densities.py --only garch --modes synk python c numba

One thread. Each mode compiles a function of a flat vector of parameters to the log-density and its gradient;
compilation is timed beside the first call.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytensor
import pytensor.tensor as pt
from markdown_tables import aligned, in_turn, in_words
from pytensor.compile.mode import get_mode

from synk.compile import ArrayLinker, array_mode
from synk.tools.bench.pairs import Comparison, in_units

Model = Callable[[Any], Any]  # of a flat vector of parameters, to the log-density
HALF_LOG_TAU = 0.5 * np.log(2 * np.pi)


def normal(x, mean, sigma):
    """Return the log-density of a normal distribution."""
    return -0.5 * ((x - mean) / sigma) ** 2 - pt.log(sigma) - HALF_LOG_TAU


def eight_schools(q):
    """Return the density of treatment effects in eight schools, not centred: 10 parameters."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    mu, log_tau, eta = q[0], q[1], q[2:10]
    tau = pt.exp(log_tau)
    prior = normal(mu, 0, 5) + pt.log(2 / np.pi / 5) - pt.log1p((tau / 5) ** 2) + log_tau
    return prior + normal(eta, 0, 1).sum() + normal(y, mu + tau * eta, sigma).sum()


def autoregression(q):
    """Return the density of a series of 200 steps, each of which depends on the five before: 7 parameters."""
    y = np.random.default_rng(1).normal(size=200).cumsum()
    rho, intercept, log_sigma = q[:5], q[5], q[6]
    mean = intercept + sum(rho[k] * y[4 - k : 199 - k] for k in range(5))
    prior = normal(rho, 0, 1).sum() + normal(intercept, 0, 10) + normal(log_sigma, 0, 1)
    return prior + normal(y[5:], mean, pt.exp(log_sigma)).sum()


def gaussian_process(q):
    """Return the density of 11 points under a Gaussian process: 3 parameters."""
    x = np.linspace(-10, 10, 11)
    y = np.sin(x / 3) + 0.1 * np.random.default_rng(2).normal(size=11)
    length, amplitude, noise = pt.exp(q[0]), pt.exp(q[1]), pt.exp(q[2])
    distance = (x[:, None] - x[None, :]) ** 2
    covariance = amplitude**2 * pt.exp(-0.5 * distance / length**2) + (noise**2 + 1e-8) * pt.eye(11)
    factor = pt.linalg.cholesky(covariance)
    white = pt.linalg.solve_triangular(factor, pt.constant(y), lower=True)
    return -0.5 * (white**2).sum() - pt.log(pt.diagonal(factor)).sum() + normal(q, 0, 1).sum()


def mixture(q):
    """Return the density of 1,000 rows under three normal distributions: 9 parameters."""
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(m, s, size=n) for m, s, n in ((-2, 0.5, 300), (0, 1, 400), (3, 0.7, 300))])
    weights = pt.special.log_softmax(q[:3])
    means, sigmas = q[3:6], pt.exp(q[6:9])
    each = weights + normal(pt.constant(y)[:, None], means, sigmas)
    return pt.logsumexp(each, axis=1).sum() + normal(q, 0, 2).sum()


def garch(q):
    """Return the density of 200 returns whose variance follows GARCH(1, 1), by Scan: 4 parameters."""
    y = np.random.default_rng(4).normal(size=200)
    mu, omega, alpha, beta = q[0], pt.exp(q[1]), pt.sigmoid(q[2]), pt.sigmoid(q[3])
    residuals = pt.constant(y) - mu

    def step(residual, variance):
        return omega + alpha * residual**2 + beta * variance

    variances = pytensor.scan(
        step,
        sequences=[residuals[:-1]],
        outputs_info=[pt.constant(np.float64(1))],
        return_updates=False,
    )
    variances = pt.concatenate([[1.0], variances])
    return normal(residuals, 0, pt.sqrt(variances)).sum() + normal(q, 0, 1).sum()


def regression(q):
    """Return the density of 2,000 answers yes or no, by group, with weights: 60 parameters."""
    rng = np.random.default_rng(5)
    x, group = rng.normal(size=(2000, 10)), rng.integers(50, size=2000)
    y = rng.integers(2, size=2000)
    beta, effect = q[:10], q[10:60]
    logits = pt.constant(x) @ beta + effect[group]
    return (y * logits - pt.softplus(logits)).sum() + normal(q, 0, 1).sum()


MODELS: dict[str, tuple[Model, int]] = {
    "eight schools": (eight_schools, 10),
    "AR(5)": (autoregression, 7),
    "GP, 11 points": (gaussian_process, 3),
    "mixture": (mixture, 9),
    "GARCH(1,1)": (garch, 4),
    "regression": (regression, 60),
}


MODES: dict[str, Callable[[], Any]] = {
    "synk": array_mode,
    "python": lambda: array_mode(ArrayLinker(native=False)),
    "numba": lambda: get_mode("NUMBA"),
    "c": lambda: get_mode("CVM"),
}
CALLS = 200  # at a time
pytensor.config.numba__fastmath = False  # with it, NaN and the order of sums are not NumPy's


def compiled(model: Model, n: int, mode: str) -> tuple[Any, float]:
    """Return a function of the parameters, and the seconds until it had its first result."""
    q = pt.dvector("q", shape=(n,))
    density = model(q)
    outputs = [density, pytensor.grad(density, q)]
    start = time.perf_counter()
    function = pytensor.function([pytensor.In(q, borrow=True)], outputs, mode=MODES[mode]())
    function.trust_input = True
    function(np.full(n, 0.1))
    return function, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*MODELS], default=[*MODELS], metavar="MODEL")
    parser.add_argument("--modes", nargs="+", choices=[*MODES], default=["synk", "numba"], metavar="MODE")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="two models, synk only, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        options.only, options.modes = options.only[:2], ["synk"]
    last = options.modes[-1]
    rows = [row(name, options.modes, options.rounds) for name in options.only]
    heads = [head for mode in options.modes for head in (f"{mode}, first", mode)]
    print(aligned(["density and gradient", *heads, *[f"× {last}" for _ in options.modes[:-1]]], rows))


def row(name: str, modes: list[str], rounds: int) -> list[str]:
    """Return a line of the table: for each mode the time to the first result and of a call, then ratios."""
    model, n = MODELS[name]
    q = np.full(n, 0.1)
    made = {mode: compiled(model, n, mode) for mode in modes}
    expected = made[modes[-1]][0](q)
    for function, _ in made.values():
        for one, other in zip(function(q), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8)
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    for _, mode in in_turn(modes, rounds):
        function, _ = made[mode]
        start = time.perf_counter()
        for _ in range(CALLS):
            function(q)
        seconds[mode].append((time.perf_counter() - start) / CALLS)
    comparison = Comparison(seconds)
    cells = [cell for m in modes for cell in (f"{made[m][1]:.1f} s", in_units(comparison.median(m)))]
    return [name, *cells, *[in_words(comparison.ratio(mode, to=modes[-1])) for mode in modes[:-1]]]


if __name__ == "__main__":
    main()
