"""PyMC's own functions with synk's mode: they give the numbers that they give with PyTensor's plain one."""

import sys

import numpy as np
import pytest
from pytensor.compile.mode import Mode

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm

from support import pymc_models as models
from synk.compile import array_mode

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS:UserWarning", "ignore::FutureWarning:pymc"
)
MODELS = [models.schools, models.hierarchy, models.classes, models.mixture, models.autoregression]


def by(mode, model):
    """Return what PyMC draws and fits with a mode, by name."""
    options = {"random_seed": 1, "compile_kwargs": {"mode": mode}}
    with model():
        prior = pm.sample_prior_predictive(4, **options)
        drawn = pm.sample(
            4,
            tune=4,
            chains=1,
            cores=1,
            nuts_sampler="pymc",
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )
        posterior = pm.sample_posterior_predictive(drawn, progressbar=False, **options)
        fitted = pm.fit(10, progressbar=False, **options)
    groups = prior.prior, prior.prior_predictive, drawn.posterior, posterior.posterior_predictive
    found = {(group.name, name): values.values for group in groups for name, values in group.items()}
    return found | {("fit", "loss"): fitted.hist, ("fit", "mean"): fitted.mean.eval()}


@pytest.mark.parametrize("model", MODELS, ids=lambda one: one.__name__)
def test_samplers_and_fits_give_the_numbers_of_pytensor(model):
    found, expected = by(array_mode(), model), by(Mode("py", "fast_compile"), model)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-9, err_msg=str(name))
