"""Maxima and normal approximations of posteriors that are known."""

import sys

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm

import synk
from support import pymc_models as models
from synk.compile import array_mode
from synk.extensions.pymc import find_MAP, fit

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")


@pytest.mark.filterwarnings("ignore:.*find_MAP:FutureWarning")
@pytest.mark.parametrize("shard", [None, "obs"])
def test_the_maximum_is_that_of_pymc(shard):
    found = find_MAP(model=models.regression(), shard=shard, cores=2, tol=1e-10)
    expected = pm.find_MAP(
        model=models.regression(),
        jitter=False,
        progressbar=False,
        compile_kwargs={"mode": array_mode()},
        tol=1e-10,
    )
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4)


def test_a_search_without_an_end_says_so_and_returns_where_it_is():
    with pytest.warns(synk.SynkWarning, match="find_MAP stops after"):
        found = find_MAP(model=models.regression(), maxiter=1)
    assert set(found) == {"slopes", "noise", "noise_log__", "total"}


@pytest.mark.parametrize("shard", [None, "obs"])
def test_a_normal_posterior_is_fitted(shard):
    found = fit(3000, model=models.normal_mean(), shard=shard, cores=2, random_seed=1)
    assert found.mean == pytest.approx(models.Y.sum() / (models.N + 1), abs=0.01)
    assert found.std == pytest.approx((models.N + 1) ** -0.5, rel=0.1)
    assert found.losses[-500:].mean() < found.losses[:100].mean()
    draws = found.sample(500, random_seed=2).posterior["mean"]
    assert draws.shape == (1, 500)
    assert float(draws.mean()) == pytest.approx(found.mean[0], abs=5 * found.std[0] / 500**0.5)


def nowhere_finite():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Exponential("y", pm.math.exp(mean), observed=[1.0, -1.0])
    return model


@pytest.mark.parametrize("what", [find_MAP, fit])
def test_a_density_of_zero_everywhere_is_refused(what):
    with pytest.raises(pm.exceptions.SamplingError, match=r"at the first it is -inf[\s\S]*y: -inf"):
        what(model=nowhere_finite())


def test_a_fit_begins_where_its_seed_says():
    one, again, other = (
        fit(1, model=models.normal_mean(), learning_rate=0.0, random_seed=seed).mean for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def test_steps_that_are_left_out_are_told():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("p", pm.math.switch(x > 0, 0.0, -np.inf))
    with pytest.warns(synk.SynkWarning, match=r"fit has left out steps: .* not finite at \d+ of 50 random"):
        found = fit(50, model=model, random_seed=1)
    assert not np.isfinite(found.losses).all()
    with pytest.raises(pm.exceptions.SamplingError, match="fit has taken no step: .* 0 of 0"):
        fit(0, model=model)


def test_a_model_in_the_place_of_the_method_is_refused():
    with pytest.raises(TypeError, match="pass it by its name, model="):
        find_MAP(models.normal_mean())
