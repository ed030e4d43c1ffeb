"""Points at which chains, searches and fits begin."""

import sys

import numpy as np
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm
from pymc.initial_point import make_initial_point_fn

from synk.extensions.pymc.density import Prepared
from synk.extensions.pymc.starts import StartError, first_finite, named


def model():
    with pm.Model() as made:
        pm.Normal("mean")
        pm.HalfNormal("scale")
    return made


def by_variable(made):
    return {made["mean"]: 5.0, made["scale"]: 2.0}


def by_name(made):
    return {"mean": 5.0, "scale": 2.0}


def by_value(made):
    return {"mean": 5.0, "scale_log__": np.log(2.0)}


@pytest.mark.parametrize("values", [by_variable, by_name, by_value])
def test_initial_values_are_those_that_are_passed(values):
    made = model()
    point = Prepared(made, values(made), jitter=False).start(0)
    assert point["mean"] == 5
    assert point["scale_log__"] == pytest.approx(np.log(2))


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")  # for its own function
def test_points_are_those_at_which_pymc_begins():
    with pm.Model() as made:
        scale = pm.HalfNormal("scale", shape=3)
        pm.Normal("y", 1, scale)
        pm.Dirichlet("p", np.ones(3), initval="prior")
        pm.LKJCholeskyCov("c", n=2, eta=1, sd_dist=pm.Exponential.dist(1.0))
    expected = make_initial_point_fn(
        model=made, jitter_rvs=set(made.free_RVs), overrides={"y": np.full(3, 2.0)}
    )
    prepared = Prepared(made, {"y": np.full(3, 2.0)})
    for seed in (0, 7):
        found = prepared.start(seed)
        assert found.keys() == expected(seed).keys()
        for name, value in expected(seed).items():
            # Two programs compute it: PyMC's mode and ours round sums and logarithms apart.
            np.testing.assert_allclose(found[name], value, rtol=1e-14, atol=1e-14, err_msg=name)


def test_initial_values_of_others_are_refused():
    with pytest.raises(ValueError, match="initvals has spread; the model's free variables are mean, scale"):
        named(model(), {"mean": 1.0, "spread": 1.0})
    with pytest.raises(TypeError, match="initvals is a list; pass one dictionary"):
        named(model(), [{"mean": 1.0}])


def test_the_first_point_is_taken_at_which_value_and_gradient_are_finite():
    def evaluate(point):
        return point[0], point[1:]

    points = np.array([[-np.inf, 1], [2, np.nan], [3, 4], [5, 6]])
    assert first_finite(evaluate, points).tolist() == [3, 4]
    with pytest.raises(StartError, match="at the first it is 2, and 1 of 1 elements") as caught:
        first_finite(evaluate, points[1:2])
    assert caught.value.point is not None
