"""New observations and log-likelihoods for the draws of a posterior, beside PyMC's own."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph import Apply, Op

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm
import xarray

import synk
from support import pymc_models as models
from synk.compile import array_mode
from synk.extensions.pymc import compute_log_likelihood, parts, sample_posterior_predictive

pytestmark = pytest.mark.filterwarnings(
    "ignore::pymc.exceptions.ImputationWarning",
    "ignore:Scan return signature:DeprecationWarning",  # as loops of CustomDist are written
    "ignore:The effect of Potentials:UserWarning",
    "ignore:PyTensor could not link to a BLAS:UserWarning",
)
OF_PYMC = {"progressbar": False, "compile_kwargs": {"mode": array_mode()}}
QUIET = {"progressbar": False}


def trace_of(model, draws=7):
    """Return draws of the prior as if they were those of a posterior."""
    found = pm.sample_prior_predictive(
        draws, model=model, random_seed=1, compile_kwargs=OF_PYMC["compile_kwargs"]
    )
    groups = {name: found[name] for name in parts.WHOLE if name in found}
    return xarray.DataTree.from_dict({"posterior": found.prior, **groups})


def assert_same_but_values(found, expected):
    assert set(found.children) == set(expected.children)
    for name, group in expected.children.items():
        assert set(found[name].data_vars) == set(group.data_vars)
        for variable, values in group.data_vars.items():
            assert found[name][variable].dims == values.dims
            assert found[name][variable].dtype == values.dtype
        assert set(found[name].coords) == set(group.coords)
        for dimension, values in group.coords.items():
            assert np.array_equal(found[name][dimension], values)


@pytest.mark.parametrize("model", [*models.SPLIT, *models.NOT_SPLIT], ids=lambda one: one.__name__)
def test_densities_and_shapes_are_those_of_pymc(model):
    made = model()
    trace = trace_of(made)
    if made.observed_RVs:
        found = compute_log_likelihood(trace, model=made, extend_inferencedata=False, cores=2, **QUIET)
        for rv in made.free_RVs:
            made.set_initval(rv, None)  # PyMC refuses others
        expected = pm.compute_log_likelihood(trace, model=made, extend_inferencedata=False, **OF_PYMC)
        xarray.testing.assert_allclose(found, expected, rtol=1e-9)
    found = sample_posterior_predictive(trace, made, random_seed=1, cores=2, **QUIET)
    assert_same_but_values(found, pm.sample_posterior_predictive(trace, made, random_seed=1, **OF_PYMC))
    for values in found.children.get("posterior_predictive", found).data_vars.values():
        assert np.isfinite(values).all()


def test_a_seed_gives_the_same_observations_on_any_number_of_ranks():
    made = models.hierarchy()
    trace = trace_of(made, draws=100)
    alone, two, three = (
        sample_posterior_predictive(trace, made, random_seed=4, cores=cores, **QUIET) for cores in (1, 2, 3)
    )
    assert not synk.is_open()  # what it forked is closed
    assert alone.equals(two)
    assert alone.equals(three)
    other = sample_posterior_predictive(trace, made, random_seed=5, cores=2, **QUIET)
    assert not alone.equals(other)


def test_no_stream_is_drawn_from_twice():
    posterior = xarray.Dataset({"mean": (("chain", "draw"), np.zeros((1, 100)))})
    found = sample_posterior_predictive(posterior, models.normal_mean(), random_seed=4, cores=2, **QUIET)
    drawn = found.posterior_predictive["y"].values
    assert np.unique(drawn).size == drawn.size


def test_observations_are_distributed_as_those_of_pymc(ranks):
    made, n = models.regression(), 4000
    trace = trace_of(made, draws=n)
    ranks(2)
    found, expected = (
        draw(trace, made, random_seed=1, **options).posterior_predictive["y"].values[0]
        for draw, options in ((sample_posterior_predictive, QUIET), (pm.sample_posterior_predictive, OF_PYMC))
    )
    residuals, of_pymc = (
        values - trace.posterior["slopes"].values[0] @ models.X.T for values in (found, expected)
    )
    error = residuals.std() * np.sqrt(2 / n)  # of a difference of means of a row
    assert np.abs(residuals.mean(axis=0) - of_pymc.mean(axis=0)).max() < 5 * error
    assert residuals.var() == pytest.approx(of_pymc.var(), rel=0.02)
    assert not np.array_equal(found, expected)


def test_a_run_of_more_ranks_than_draws_stays_open(ranks):
    made = models.normal_mean()
    trace = trace_of(made, draws=2)
    ranks(3)
    assert sample_posterior_predictive(trace, made, **QUIET).posterior_predictive.sizes["draw"] == 2
    assert compute_log_likelihood(trace, model=made, **QUIET) is trace
    assert trace.log_likelihood.sizes == {"chain": 1, "draw": 2, "obs": models.N}
    assert synk.is_open()


def test_a_data_set_gives_the_log_likelihoods_alone():
    made = models.normal_mean()
    trace = trace_of(made)
    found = compute_log_likelihood(trace.posterior.to_dataset(), model=made, cores=1, **QUIET)
    assert found["y"].shape == (1, 7, models.N)


def test_predictions_are_for_the_data_of_now():
    made = models.regression()
    trace = trace_of(made)
    with made:
        pm.set_data({"x": np.full((2, 3), 100.0)}, coords={"obs": ["new", "newer"]})
        options = {"predictions": True, "extend_inferencedata": True, "random_seed": 1}
        found = sample_posterior_predictive(trace, cores=2, **options, **QUIET)
        with pytest.warns(UserWarning, match="predictions.*: already in the trace, and overwritten"):
            sample_posterior_predictive(trace, cores=2, **options, **QUIET)
    assert found is trace
    assert found.predictions.obs.values.tolist() == ["new", "newer"]
    expected = 100 * trace.posterior["slopes"].sum("column")
    assert np.abs(found.predictions["y"] - expected).max() < 20
    assert np.array_equal(found.predictions_constant_data["x"], np.full((2, 3), 100.0))


def test_variables_are_chosen_and_drawn_anew_as_in_pymc():
    made = models.schools()
    trace = trace_of(made)
    options = {"var_names": ["mean", "effect"], "sample_vars": ["mean"], "random_seed": 1}
    with made:
        found = sample_posterior_predictive(trace, cores=2, **options, **QUIET).posterior_predictive
    assert set(found.data_vars) == {"mean", "effect"}
    kept = trace.posterior
    assert not np.isclose(found["mean"], kept["mean"]).any()
    assert np.allclose(found["effect"], found["mean"] + kept["spread"] * kept["offsets"])


def test_draws_may_have_one_dimension_or_three():
    made = models.normal_mean()
    posterior = trace_of(made).posterior.to_dataset()
    stacked = posterior.stack(sample=("chain", "draw")).reset_index("sample", drop=True)
    options = {"sample_dims": ["sample"], "cores": 2, **QUIET}
    found = sample_posterior_predictive(stacked, made, **options)
    assert found.posterior_predictive["y"].dims == ("sample", "obs")
    repeated = posterior.expand_dims(again=3)
    found = sample_posterior_predictive(
        repeated, made, **{**options, "sample_dims": ["chain", "draw", "again"]}
    )
    assert found.posterior_predictive["y"].shape == (1, 7, 3, models.N)


# --- what is told ------------------------------------------------------------------------------------------


NOISY = """
import pymc as pm
import xarray
from synk.extensions.pymc import sample_posterior_predictive

with pm.Model() as model:
    mean = pm.Normal("mean")
    pm.Potential("penalty", -(mean**2))
    pm.Normal("y", mean, observed=[0.0, 1.0])
values = xarray.Dataset({"mean": (("chain", "draw"), [[0.0] * 100])})
sample_posterior_predictive(values, model, cores=2)
"""


def test_all_ranks_together_say_what_pymc_says():
    done = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.count("Sampling: [y]") == 1
    assert said.count("UserWarning: The effect of Potentials") == 1
    assert "100%" in said


@pytest.mark.parametrize("n_presses", [1, 2])
def test_an_interrupt_ends_it_and_the_run_stays_usable(ranks, monkeypatch, n_presses):
    made = models.normal_mean()
    trace = trace_of(made, draws=200)
    ranks(2)
    plain, calls = parts.RankDraws.__call__, 0

    def pressed(self):
        nonlocal calls
        calls += 1
        if calls == 3:
            for _ in range(n_presses):
                os.kill(os.getpid(), signal.SIGINT)
        return plain(self)

    monkeypatch.setattr(parts.RankDraws, "__call__", pressed)  # of this rank
    with pytest.raises(KeyboardInterrupt):
        sample_posterior_predictive(trace, made, **QUIET)
    assert calls == 3
    monkeypatch.undo()
    sample_posterior_predictive(trace, made, **QUIET)


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "arguments", "kind", "message"),
    [
        (sample_posterior_predictive, {"var_names": ["z"]}, KeyError, "z"),
        (
            sample_posterior_predictive,
            {"sample_dims": ["row"]},
            ValueError,
            "the posterior has the dimensions",
        ),
        (sample_posterior_predictive, {"freeze_vars": ["y"]}, ValueError, "not present in the trace"),
        (sample_posterior_predictive, {"cores": 3}, ValueError, "cores=3, but the open run has 2 ranks"),
        (compute_log_likelihood, {"var_names": ["mean"]}, ValueError, "var_names has mean; observed are y"),
    ],
)
def test_a_wrong_argument_is_refused_and_the_run_stays_usable(ranks, what, arguments, kind, message):
    made = models.normal_mean()
    trace = trace_of(made)
    ranks(2)
    with pytest.raises(kind, match=message):
        what(trace, model=made, **arguments, **QUIET)
    compute_log_likelihood(trace, model=made, **QUIET)


@pytest.mark.parametrize("what", [sample_posterior_predictive, compute_log_likelihood])
def test_a_trace_without_draws_is_refused(what):
    made = models.normal_mean()
    trace = trace_of(made)
    with pytest.raises(TypeError, match="a trace is a DataTree or a Dataset of xarray, not list"):
        what([{"mean": 0.0}], model=made)
    with pytest.raises(ValueError, match="the posterior has no draws"):
        what(trace.isel(draw=slice(0, 0)), model=made)


def test_a_posterior_without_a_variable_is_refused():
    trace = trace_of(models.normal_mean())
    with pytest.raises(ValueError, match="the posterior has no noise, slopes, which the model needs"):
        compute_log_likelihood(trace, model=models.regression())
    with pytest.raises(ValueError, match="the trace has none of the model's variables, only mean"):
        sample_posterior_predictive(trace, models.regression())


def test_a_model_that_cannot_be_sent_is_refused():
    with pm.Model() as made:
        deep = pm.Normal("x")
        for _ in range(3000):
            deep = pt.sin(deep)
        pm.Normal("y", deep, observed=[0.0, 1.0])
    trace = xarray.DataTree.from_dict({"posterior": xarray.Dataset({"x": (("chain", "draw"), [[0.0]])})})
    with pytest.raises(TypeError, match="cannot be sent to the ranks, use PyMC's own function"):
        sample_posterior_predictive(trace, made, cores=2, **QUIET)


def test_ranks_without_a_density_are_told_to_be_made_again(ranks):
    ranks(2)
    made = models.custom()
    trace = trace_of(made)
    with pytest.raises(NotImplementedError, match=r"Logprob method[\s\S]*call synk\.restart\(\)"):
        compute_log_likelihood(trace, model=made, **QUIET)
    synk.restart()
    assert compute_log_likelihood(trace, model=made, **QUIET).log_likelihood["y"].shape == (1, 7, models.N)


class RefusesThere(Op):
    """Raise on every rank but the script's own."""

    __props__ = ()
    master = os.getpid()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if os.getpid() != self.master:
            raise ZeroDivisionError("of the model")
        outputs[0][0] = inputs[0].copy()


@pytest.mark.parametrize("what", [sample_posterior_predictive, compute_log_likelihood])
def test_a_model_that_raises_on_one_rank_names_it(ranks, what):
    with pm.Model() as made:
        pm.Normal("y", RefusesThere()(pm.Normal("mean")), observed=[0.0, 1.0])
    values = xarray.Dataset({"mean": (("chain", "draw"), np.zeros((1, 4)))})
    ranks(2)
    with pytest.raises(ZeroDivisionError, match="of the model") as caught:
        what(xarray.DataTree.from_dict({"posterior": values}), model=made, **QUIET)
    assert [failure.rank for failure in caught.value.failures] == [1]
    plain = models.normal_mean()
    compute_log_likelihood(trace_of(plain), model=plain, **QUIET)
