"""Sampling of PyMC's models on ranks: the draws, what is returned of them, and what goes wrong."""

import os
import signal
import sys
from contextlib import nullcontext

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph import Apply, Op

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm

import synk
from support import pymc_models as models
from synk.extensions.pymc import chains, density, record, results, sample, sampling
from synk.extensions.pymc.density import Evaluation

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")

SHORT = {"draws": 100, "tune": 150, "progressbar": False, "compute_convergence_checks": False}
ENDLESS = {**SHORT, "draws": 10**6, "tune": 50, "chains": 2, "random_seed": 1}


def same(one, other):
    return all(np.array_equal(one.posterior[name], other.posterior[name]) for name in one.posterior)


def test_a_seed_gives_the_same_draws_on_any_number_of_ranks(ranks):
    alone = sample(model=models.schools(), chains=3, cores=1, random_seed=4, **SHORT)
    assert not synk.is_open()  # what it forked is closed
    assert same(alone, sample(model=models.schools(), chains=3, cores=3, random_seed=4, **SHORT))
    ranks(2, threads=1)
    assert same(alone, sample(model=models.schools(), chains=3, random_seed=4, **SHORT))
    assert synk.is_open()
    assert not same(alone, sample(model=models.schools(), chains=3, random_seed=5, **SHORT))


def test_a_gradient_in_c_is_that_in_python(monkeypatch):
    found = sample(model=models.schools(), chains=2, cores=1, random_seed=4, **SHORT)
    asked = []
    monkeypatch.setattr(Evaluation, "callback", lambda self, otherwise: asked.append(self))
    assert same(found, sample(model=models.schools(), chains=2, cores=1, random_seed=4, **SHORT))
    assert len(asked) == 2


def test_chains_need_no_python_for_a_gradient(monkeypatch):
    monkeypatch.setattr(chains, "in_python", None)
    sample(model=models.schools(), chains=1, cores=1, random_seed=4, **SHORT)


def test_it_returns_what_pymc_does():
    options = {
        "chains": 2,
        "draws": 100,
        "tune": 150,
        "random_seed": 1,
        "progressbar": False,
        "discard_tuned_samples": False,
    }
    with models.schools():
        found = sample(cores=2, compute_convergence_checks=False, **options)
        expected = pm.sample(nuts_sampler="nutpie", **options)
    assert set(found.children) == set(expected.children)
    for group in ("posterior", "warmup_posterior", "observed_data", "constant_data"):
        variables = found[group].data_vars
        assert set(variables) == {name for name in expected[group].data_vars if not name.endswith("__")}
        for name, values in variables.items():
            assert values.dims == expected[group][name].dims
            assert values.shape == expected[group][name].shape
    assert found.posterior.school.values.tolist() == list("ABCDEFGH")
    assert np.array_equal(found.observed_data["observed"], expected.observed_data["observed"])
    numbers = {
        name for name, values in expected.sample_stats.data_vars.items() if values.dtype.kind in "biuf"
    }
    for name in numbers:
        assert found.sample_stats[name].dtype == expected.sample_stats[name].dtype
    assert found.sample_stats.attrs["inference_library"] == "nutpie"
    assert found.posterior.attrs["tuning_steps"] == expected.posterior.attrs["tuning_steps"] == 150


@pytest.mark.parametrize("shard", [None, "obs"])
def test_chains_and_rows_give_the_posterior_there_is(ranks, shard):
    ranks(2)
    options = {**SHORT, "draws": 1500, "tune": 300, "var_names": ["mean"]}
    found = sample(model=models.normal_mean(), chains=2, random_seed=2, shard=shard, **options)
    mean = found.posterior["mean"].values
    assert mean.mean() == pytest.approx(models.Y.sum() / (models.N + 1), abs=0.015)
    assert mean.std() == pytest.approx((models.N + 1) ** -0.5, rel=0.1)


def test_rows_on_ranks_give_the_first_draws_of_one_process():
    options = {**SHORT, "chains": 2, "random_seed": 4, "discard_tuned_samples": False}
    alone = sample(model=models.hierarchy(), cores=2, **options)
    together = sample(model=models.hierarchy(), cores=3, shard="obs", **options)
    first = [one.warmup_posterior["groups"].values[:, :5] for one in (alone, together)]
    np.testing.assert_allclose(*first, rtol=1e-6)  # later ones drift apart: sums come in another order


def test_it_is_called_as_pymc_is():
    with models.normal_mean():
        found = sample(30, tune=0, chains=2, cores=1, progressbar=False, discard_tuned_samples=False)
    assert found.posterior.sizes["draw"] == 30
    assert found.warmup_posterior.sizes["draw"] == 1  # the least there is


def test_settings_reach_the_sampler():
    options = {**SHORT, "chains": 2, "cores": 1, "random_seed": 1}
    found = sample(model=models.schools(), nuts={"max_treedepth": 2}, **options)
    assert found.sample_stats["depth"].max() == 2


def test_draws_are_the_same_with_large_arrays_in_shared_memory(monkeypatch):
    x = np.random.default_rng(0).normal(size=density.SHARED_BYTES // 8)
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("y", slope * x, observed=2 * x)
    options = {"draws": 10, "tune": 10, "chains": 2, "cores": 2, "random_seed": 1, "progressbar": False}
    shared = sample(model=model, **options)
    monkeypatch.setattr(density, "SHARED_BYTES", 10**9)
    assert same(shared, sample(model=model, **options))


def test_deterministics_alone_are_returned_with_checks_on():
    options = {**SHORT, "compute_convergence_checks": True}
    found = sample(model=models.schools(), chains=2, cores=1, var_names=["effect"], **options)
    assert set(found.posterior.data_vars) == {"effect"}


def test_checks_that_fail_leave_the_draws_as_they_are(monkeypatch):
    def fails(*arguments):
        raise ZeroDivisionError("of the checks")

    monkeypatch.setattr(sampling, "run_convergence_checks", fails)
    with pytest.warns(synk.SynkWarning, match="not checked: ZeroDivisionError"):
        found = sample(20, tune=20, model=models.normal_mean(), chains=2, cores=1, progressbar=False)
    assert found.posterior.sizes["draw"] == 20


def test_deterministics_draw_random_numbers_anew():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Deterministic("noise", pm.Normal.dist(size=2))
        pm.Normal("y", mean, observed=[1.0, 2.0])
    options = {**SHORT, "chains": 2, "random_seed": 1}
    found, again = (sample(model=model, cores=cores, **options) for cores in (1, 2))
    assert np.unique(found.posterior["noise"]).size == 2 * 100 * 2
    assert same(found, again)


def test_divergences_are_reported_as_pymc_reports_them(caplog):
    with pm.Model() as model:
        spread = pm.Normal("spread", 0, 3)
        pm.Normal("funnel", 0, pm.math.exp(spread), shape=9)
    found = sample(
        model=model,
        chains=2,
        cores=2,
        random_seed=0,
        draws=300,
        tune=200,
        target_accept=0.5,
        progressbar=False,
    )
    n = int(found.sample_stats["diverging"].sum())
    assert n > 1
    assert f"{n} divergences after tuning" in caplog.text


def test_progress_of_all_chains_is_shown(capsys):
    sample(model=models.schools(), chains=3, cores=2, random_seed=4, **{**SHORT, "progressbar": True})
    shown = capsys.readouterr().out
    assert shown.count(" 100 ") >= 3
    assert all(word in shown for word in ("Draw", "Step", "Elap"))


# --- early ends ---------------------------------------------------------------------------------------------


def once_drawn(what, monkeypatch):
    """Have something done at the second time that draws after the warm-up come in."""
    plain, count = record.Record.add, 0

    def add(self, reports):
        nonlocal count
        plain(self, reports)
        count += bool(self.kept(tuning=False).chains)
        if count == 2:
            what()

    monkeypatch.setattr(record.Record, "add", add)


def test_an_interrupt_returns_what_was_drawn(ranks, monkeypatch):
    ranks(2)
    once_drawn(lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    found = sample(model=models.schools(), **ENDLESS)
    assert 1 <= found.posterior.sizes["draw"] < 10**6
    monkeypatch.undo()
    sample(model=models.schools(), chains=2, random_seed=1, **SHORT)  # the run stays usable


@pytest.mark.parametrize("shard", [None, "school"])
def test_a_rank_that_dies_is_named_and_the_draws_until_then_are_returned(ranks, monkeypatch, shard):
    ranks(2)
    once_drawn(lambda: os.kill(synk.pids()[1], signal.SIGKILL), monkeypatch)
    with pytest.warns(synk.SynkWarning, match=r"rank 1 .*SIGKILL[\s\S]*Sampling has ended early"):
        found = sample(model=models.schools(), shard=shard, **ENDLESS)
    assert found.posterior.sizes["draw"] >= 1
    monkeypatch.undo()
    synk.restart()
    sample(model=models.schools(), chains=2, random_seed=1, **SHORT)


def test_an_interrupt_in_the_warm_up_returns_it_if_it_is_kept(ranks, monkeypatch):
    ranks(2)
    plain = record.Record.add

    def add(self, reports):
        plain(self, reports)
        if self.known():
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGINT)

    options = {**ENDLESS, "tune": 10**6}
    for keep in (True, False):
        monkeypatch.setattr(record.Record, "add", add)
        if keep:
            found = sample(model=models.schools(), discard_tuned_samples=False, **options)
            assert found.posterior["effect"].shape[1:] == (0, 8)
            assert found.warmup_posterior.sizes["draw"] >= 1
        else:
            with pytest.raises(pm.exceptions.SamplingError, match="before any chain had drawn"):
                sample(model=models.schools(), **options)


def test_an_interrupt_after_the_last_draw_loses_none(monkeypatch):
    plain = results.Expansion.of

    def of(self, points):
        os.kill(os.getpid(), signal.SIGINT)
        return plain(self, points)

    monkeypatch.setattr(results.Expansion, "of", of)
    found = sample(model=models.schools(), chains=2, cores=1, **SHORT)
    assert found.posterior.sizes["draw"] == 100


def test_chains_of_which_one_is_in_its_warm_up_become_a_tree_with_the_warm_up():
    prepared = density.Prepared(models.normal_mean())
    reports = [
        chains.Report(
            chain,
            chains.Progress(),
            False,
            np.zeros((stop, 1)),
            {"tuning": np.arange(stop) < 5},
        )
        for chain, stop in enumerate((3, 8))
    ]
    drawn = record.Record(2, 1)
    drawn.add(reports)
    found = results.tree(prepared.model, results.Expansion(prepared), *drawn.with_warmup())
    assert found.posterior.chain.values.tolist() == found.warmup_posterior.chain.values.tolist() == [1]


# --- bad input ---------------------------------------------------------------------------------------------


def length_of(rank, text):
    return lambda: len(text)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"chains": 1}, ValueError, "chains=1 would leave 1 of 2 ranks without work"),
        ({"chains": 0}, ValueError, "chains=0 is less than 1"),
        ({"draws": 1.5}, TypeError, "draws=1.5 is not an integer"),
        ({"tune": -1}, ValueError, "tune=-1 is less than 0"),
        ({"tune": 1.5}, TypeError, "tune=1.5 is not an integer"),
        ({"draws": models.normal_mean()}, TypeError, "pass it by its name, model="),
        ({"model": "schools"}, TypeError, "model='schools' is no pymc.Model"),
        ({"initvals": [{"mean": 1.0}] * 2}, TypeError, "initvals is a list; pass one dictionary"),
        (
            {"initvals": {"effect": 1.0}},
            ValueError,
            "initvals has effect; the model's free variables are mean,",
        ),
        ({"var_names": []}, ValueError, "var_names has no variable; the model has"),
        ({"nuts": {"draws": 1, "store_gradient": True}}, TypeError, "nuts has draws, store_gradient"),
        ({"cores": 3}, ValueError, "cores=3, but the open run has 2 ranks"),
        ({"var_names": ["centre"]}, ValueError, "var_names has centre; the model has"),
        ({"shard": "row"}, ValueError, "shard='row' is no dimension"),
        ({"nuts": {"no_such": 1}}, AttributeError, "no_such"),
    ],
)
def test_a_wrong_argument_is_refused_and_the_run_stays_usable(ranks, arguments, kind, message):
    ranks(2)
    with pytest.raises(kind, match=message):
        sample(**{"model": models.schools(), **SHORT, **arguments})
    assert synk.on_ranks(length_of, "abc")() == [3, 3]


@pytest.mark.parametrize("shard", [None, "obs"])
def test_an_initial_point_of_density_zero_lists_the_terms(ranks, shard):
    ranks(2)
    with pm.Model(coords={"obs": range(3)}) as model:
        mean = pm.Normal("mean")
        pm.Exponential("y", pm.math.exp(mean), observed=[1.0, -1.0, 2.0], dims="obs")
    message = r"it is -inf, and 0 of 1 [\s\S]*mean = -?\d\.\d+\n[\s\S]*mean: -[\s\S]*y: -inf"
    unchecked = pytest.warns(synk.SynkWarning, match="not compared with one process")
    with pytest.raises(pm.exceptions.SamplingError, match=message), unchecked if shard else nullcontext():
        sample(model=model, chains=2, shard=shard, **SHORT)
    sample(model=models.normal_mean(), chains=2, random_seed=1, **SHORT)


def test_a_gradient_that_is_not_finite_is_told():
    with pm.Model() as model:
        scale = pm.Normal("scale", shape=2)
        pm.Potential("p", -pm.math.sqrt((np.array([0.0, 1.0]) * scale) ** 2).sum())
    with pytest.raises(
        pm.exceptions.SamplingError, match=r"it is -\d.*, and 1 of 2 elements of its gradient"
    ):
        sample(model=model, chains=2, cores=1, **SHORT)


@pytest.mark.parametrize("length", [None, 0])
def test_a_model_without_free_variables_is_refused_as_by_pymc(length):
    with pm.Model() as model:
        pm.Data("x", 1.0) if length is None else pm.Normal("x", shape=length)
    with pytest.raises(pm.exceptions.SamplingError, match="no free variables, or only such of size 0"):
        sample(model=model, **SHORT)


def test_a_deterministic_that_raises_does_so_before_there_are_draws(monkeypatch):
    with pm.Model() as model:
        values = pm.Normal("values", shape=3)
        pm.Deterministic("last", values[pm.Data("place", [7])])
        pm.Normal("y", values, observed=np.ones(3))
    monkeypatch.setattr(sampling, "_follow", None)
    with pytest.raises(IndexError):
        sample(model=model, chains=2, cores=1, **SHORT)


def test_a_deterministic_that_raises_at_some_draw_is_left_out():
    with pm.Model() as model:
        x = pm.Normal("x", sigma=3)
        pm.Deterministic("far", pt.arange(3)[pt.cast(2 * pt.abs(x), "int64")])
    with pytest.warns(synk.SynkWarning, match=r"deterministics are left out, .*IndexError"):
        found = sample(model=model, chains=2, cores=1, **SHORT)
    assert list(found.posterior.data_vars) == ["x"]


def test_a_later_chain_that_cannot_begin_tells_the_terms(monkeypatch):
    with pm.Model() as model:
        pm.Potential("wall", pt.switch(pm.Normal("mean") < -100, -np.inf, 0))
    begin = sampling._starts

    def starts(*arguments):
        first, second = begin(*arguments)
        return [first, second._replace(points=second.points - 200)]

    monkeypatch.setattr(sampling, "_starts", starts)
    with pytest.raises(pm.exceptions.SamplingError, match="wall: -inf"):
        sample(model=model, chains=2, cores=1, **SHORT)


class Refuses(Op):
    """Raise on every rank but the script's own, after some calls."""

    __props__ = ()
    master, calls = os.getpid(), 0

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        Refuses.calls += 1
        if os.getpid() != self.master and Refuses.calls > 50:
            raise ZeroDivisionError("of the model")
        outputs[0][0] = inputs[0].copy()

    def pullback(self, inputs, outputs, cotangents):
        return cotangents


@pytest.mark.parametrize("shard", [None, "obs"])
def test_a_density_that_raises_on_one_rank_names_it(ranks, shard):
    with pm.Model(coords={"obs": range(4)}) as model:
        mean = pm.Normal("mean")
        pm.Potential("p", -(Refuses()(pt.as_tensor(mean)) ** 2))
        pm.Normal("y", mean, observed=np.ones(4), dims="obs")
    ranks(2)
    with pytest.raises(ZeroDivisionError, match="of the model") as caught:
        sample(model=model, chains=2, random_seed=1, shard=shard, **SHORT)
    assert [failure.rank for failure in caught.value.failures] == [1]
    sample(model=models.normal_mean(), chains=2, random_seed=1, **SHORT)
