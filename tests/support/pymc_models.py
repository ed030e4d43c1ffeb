"""Models of PyMC, small ones of many kinds; imported by tests on Python 3.12 and newer only."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

N = 103  # rows, which divide evenly by no number of ranks
X = np.random.default_rng(0).normal(size=(N, 3))
Y = X @ [1.0, -0.5, 0.25] + np.random.default_rng(1).normal(size=N)
GROUPS = np.random.default_rng(2).integers(0, 7, N)
COUNTS = np.random.default_rng(3).poisson(2.0, N)


def regression():
    with pm.Model(coords={"obs": range(N), "column": list("abc")}) as model:
        x = pm.Data("x", X, dims=("obs", "column"))
        slopes = pm.Normal("slopes", dims="column")
        noise = pm.HalfNormal("noise")
        pm.Deterministic("total", slopes.sum())
        pm.Normal("y", x @ slopes, noise, observed=Y, dims="obs")
    return model


def counts():
    with pm.Model(coords={"obs": range(N)}) as model:
        slopes = pm.Normal("slopes", shape=3)
        pm.Poisson("y", pm.math.exp(X @ slopes), observed=COUNTS, dims="obs")
    return model


def hierarchy():
    with pm.Model(coords={"obs": range(N)}) as model:
        spread = pm.HalfNormal("spread")
        groups = pm.Normal("groups", 0, spread, shape=7)
        pm.StudentT("y", nu=4, mu=groups[GROUPS], sigma=1, observed=Y, dims="obs")
    return model


def effects_of_rows():
    with pm.Model(coords={"obs": range(N)}) as model:
        spread = pm.HalfNormal("spread")
        effects = pm.Normal("effects", 0, spread, dims="obs")
        pm.Poisson("y", pm.math.exp(effects), observed=COUNTS, dims="obs")
    return model


def mixture():
    with pm.Model(coords={"obs": range(N)}) as model:
        weights = pm.Dirichlet("weights", np.ones(2))
        centres = pm.Normal("centres", shape=2)
        pm.NormalMixture("y", w=weights, mu=centres, sigma=1.0, observed=Y, dims="obs")
    return model


def ordinal():
    with pm.Model(coords={"obs": range(N)}) as model:
        cuts = pm.Normal(
            "cuts",
            [-1, 0, 1],
            1,
            shape=3,
            transform=pm.distributions.transforms.ordered,
            initval=[-1, 0, 1],
        )
        slopes = pm.Normal("slopes", shape=3)
        pm.OrderedLogistic("y", eta=X @ slopes, cutpoints=cuts, observed=GROUPS % 4, dims="obs")
    return model


def censored():
    with pm.Model(coords={"obs": range(N)}) as model:
        centre = pm.Normal("centre")
        latent = pm.Normal.dist(centre, 1.0)
        pm.Censored("y", latent, -1, 1, observed=np.clip(Y, -1, 1), dims="obs")
    return model


def classes():
    with pm.Model(coords={"obs": range(N)}) as model:
        weights = pm.Normal("weights", shape=(3, 5))
        p = pm.math.softmax(X @ weights, axis=1)
        pm.Categorical("y", p=p, observed=GROUPS % 5, dims="obs")
    return model


def potential():
    with pm.Model(coords={"obs": range(N), "column": list("abc")}) as model:
        x = pm.Data("x", X, dims=("obs", "column"))
        slopes = pm.Normal("slopes", shape=3)
        pm.Potential("loss", -((x @ slopes - Y) ** 2).sum())
    return model


def custom():
    def log_density(value, centre):
        return -((value - centre) ** 2)

    def draw(centre, rng=None, size=None):
        return rng.normal(centre, 0.5**0.5, size=size)

    with pm.Model(coords={"obs": range(N)}) as model:
        centre = pm.Normal("centre")
        pm.CustomDist("y", centre, logp=log_density, random=draw, observed=Y, dims="obs")
    return model


def vectors():
    values = np.random.default_rng(4).normal(size=(N, 3))
    with pm.Model(coords={"obs": range(N), "column": list("abc")}) as model:
        centre = pm.Normal("centre", shape=3)
        spreads = pm.HalfNormal.dist(1, shape=3)
        factor, _, _ = pm.LKJCholeskyCov("factor", n=3, eta=2, sd_dist=spreads)
        pm.MvNormal("y", centre, chol=factor, observed=values, dims=("obs", "column"))
    return model


def truncated():
    with pm.Model(coords={"obs": range(N)}) as model:
        centre = pm.Normal("centre")
        pm.Truncated("y", pm.Normal.dist(centre, 1.0), -4, 4, observed=np.clip(Y, -3, 3), dims="obs")
    return model


def loop_of_each_row():
    def step(level, x, decay):
        return decay * level + x

    with pm.Model(coords={"obs": range(N)}) as model:
        decay = pm.Normal("decay", 0, 0.2)
        x = pm.Data("x", X[:, 0], dims="obs")
        levels = pytensor.scan(
            step,
            outputs_info=[pt.zeros_like(x)],
            non_sequences=[x, decay],
            n_steps=4,
            return_updates=False,
        )
        pm.Normal("y", levels[-1], 1, observed=Y, dims="obs")
    return model


def inflated():
    with pm.Model(coords={"obs": range(N)}) as model:
        share = pm.Beta("share", 2, 2)
        slopes = pm.Normal("slopes", shape=3)
        pm.ZeroInflatedPoisson("y", share, pm.math.exp(X @ slopes), observed=COUNTS, dims="obs")
    return model


def responses():
    with pm.Model(coords={"obs": range(N), "item": list("abc")}) as model:
        ability = pm.Normal("ability", dims="obs")
        difficulty = pm.Normal("difficulty", dims="item")
        slope = pm.LogNormal("slope", 0, 0.3, dims="item")
        logit = slope * (ability[:, None] - difficulty)
        pm.Bernoulli("y", logit_p=logit, observed=X > 0, dims=("obs", "item"))
    return model


def zero_sum():
    with pm.Model(coords={"obs": range(N)}) as model:
        groups = pm.ZeroSumNormal("groups", shape=7)
        pm.Normal("y", groups[GROUPS], 1, observed=Y, dims="obs")
    return model


SPLIT = (
    regression,
    counts,
    hierarchy,
    effects_of_rows,
    mixture,
    ordinal,
    censored,
    classes,
    potential,
    custom,
    vectors,
    truncated,
    loop_of_each_row,
    inflated,
    responses,
    zero_sum,
)


def missing():
    values = Y.copy()
    values[::50] = np.nan
    with pm.Model(coords={"obs": range(N)}) as model:
        centre = pm.Normal("centre")
        pm.Normal("y", centre + X[:, 0], 1, observed=values, dims="obs")
    return model


def autoregression():
    with pm.Model(coords={"obs": range(N)}) as model:
        lags = pm.Normal("lags", 0, 0.2, shape=2)
        begin = pm.Normal.dist(0, 1, shape=2)
        pm.AR("y", lags, sigma=1.0, init_dist=begin, observed=Y, dims="obs")
    return model


def gaussian_process():
    with pm.Model(coords={"obs": range(N)}) as model:
        scale = pm.HalfNormal("scale")
        process = pm.gp.Marginal(cov_func=pm.gp.cov.Matern52(1, scale))  # which holds an array of NaN
        process.marginal_likelihood("y", X=X[:, :1], y=Y, sigma=1.0, dims="obs")
    return model


def loop_over_rows():
    def step(before, decay):
        new = pm.Normal.dist(decay * before, 1)
        return new, pm.pytensorf.collect_default_updates([new])

    def series(decay, size):
        return pytensor.scan(step, outputs_info=[pt.zeros(())], non_sequences=[decay], n_steps=N)[0]

    with pm.Model(coords={"obs": range(N)}) as model:
        decay = pm.Normal("decay", 0, 0.2)
        pm.CustomDist("y", decay, dist=series, observed=Y, dims="obs")
    return model


def loop_in_potential():
    def step(now, before, decay):
        return decay * before + now

    with pm.Model(coords={"obs": range(N)}) as model:
        decay = pm.Normal("decay", 0, 0.2)
        y = pm.Data("y", Y, dims="obs")
        levels = pytensor.scan(
            step, sequences=[y], outputs_info=[pt.zeros(())], non_sequences=[decay], return_updates=False
        )
        pm.Potential("smooth", -(levels**2).sum())
    return model


def volatility():
    with pm.Model(coords={"obs": range(N)}) as model:
        share = pm.Beta("share", 2, 2)
        pm.GARCH11("y", omega=1.0, alpha_1=share, beta_1=0.3, initial_vol=1.0, observed=Y, dims="obs")
    return model


NOT_SPLIT = {
    missing: "y_observed",
    autoregression: "y",
    gaussian_process: "y",
    loop_over_rows: "y",
    loop_in_potential: "smooth",
    volatility: "y",
}


def schools():
    effects = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mean = pm.Normal("mean", 0, 5)
        spread = pm.HalfCauchy("spread", 5)
        offsets = pm.Normal("offsets", dims="school")
        effect = pm.Deterministic("effect", mean + spread * offsets, dims="school")
        pm.Normal(
            "observed", effect, pm.Data("errors", errors, dims="school"), observed=effects, dims="school"
        )
    return model


def normal_mean():
    """The posterior of `mean` is normal, with mean `sum(Y) / (N + 1)` and variance `1 / (N + 1)`."""
    with pm.Model(coords={"obs": range(N)}) as model:
        mean = pm.Normal("mean")
        pm.Normal("y", mean, 1, observed=Y, dims="obs")
    return model
