"""Maxima and normal approximations of posteriors that are known."""

import sys

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm

from support import pymc_models as models
from synk.compile import array_mode
from synk.extensions.pymc import find_MAP, fit

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")


@pytest.mark.filterwarnings("ignore:.*find_MAP:FutureWarning")
@pytest.mark.parametrize("shard", [None, "obs"])
def test_the_maximum_is_that_of_pymc(shard):
    found = find_MAP(models.regression(), shard=shard, cores=2, tol=1e-10)
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


def test_a_search_without_an_end_says_so():
    with pytest.raises(RuntimeError, match="find_MAP, after"):
        find_MAP(models.regression(), options={"maxiter": 1})


@pytest.mark.parametrize("shard", [None, "obs"])
def test_a_normal_posterior_is_fitted(shard):
    found = fit(3000, models.normal_mean(), shard=shard, cores=2, random_seed=1)
    assert found.mean == pytest.approx(models.Y.sum() / (models.N + 1), abs=0.01)
    assert found.std == pytest.approx((models.N + 1) ** -0.5, rel=0.1)
    assert found.losses[-500:].mean() < found.losses[:100].mean()
    draws = found.sample(500, random_seed=2).posterior["mean"]
    assert draws.shape == (1, 500)
    assert float(draws.mean()) == pytest.approx(found.mean[0], abs=5 * found.std[0] / 500**0.5)
