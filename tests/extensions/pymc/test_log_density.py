"""Log-densities of PyMC's models: on one process and on all ranks, beside PyMC's own."""

import sys
from functools import cache

import numpy as np
import pytensor
import pytest

if sys.version_info < (3, 12):
    pytest.skip("PyMC 6 needs Python 3.12", allow_module_level=True)

import pymc as pm

import synk
from support import pymc_models as models
from support.processes.of_rank import runs_of
from synk.compile import array_mode
from synk.extensions.pymc import compile_logp_dlogp
from synk.extensions.pymc.density import Prepared

pytestmark = pytest.mark.filterwarnings(
    "ignore::pymc.exceptions.ImputationWarning",
    "ignore:Scan return signature:DeprecationWarning",  # as loops of CustomDist are written
    "ignore:PyTensor could not link to a BLAS:UserWarning",
)
module_ranks = runs_of(1, 3)


@cache
def built(model):
    """Return a model, and its log-density with gradient as PyMC writes them, compiled."""
    made = model()
    return made, made.compile_fn([made.logp(), made.dlogp()], mode=array_mode(), point_fn=True)


def differences(found, expected):
    return np.abs(np.hstack(found) - np.hstack(expected)).max() / np.abs(np.hstack(expected)).max()


@pytest.mark.parametrize(
    "model", [*models.SPLIT, *models.NOT_SPLIT, models.schools], ids=lambda one: one.__name__
)
def test_one_process_computes_what_pymc_does(model):
    made, of_pymc = built(model)
    density = compile_logp_dlogp(made)
    vector = density.initial_point(5)
    assert differences(density(vector), of_pymc(density.split(vector))) < 1e-9


@pytest.mark.parametrize("model", models.SPLIT, ids=lambda one: one.__name__)
def test_ranks_together_compute_what_pymc_does(module_ranks, model):
    made, of_pymc = built(model)
    density = compile_logp_dlogp(made, shard="obs")
    for seed in (5, 6):
        vector = density.initial_point(seed)
        assert differences(density(vector), of_pymc(density.split(vector))) < 1e-9


def test_rows_are_split_without_a_name_too(module_ranks):
    made, of_pymc = built(models.hierarchy)
    density = compile_logp_dlogp(made, shard=True)
    vector = density.initial_point(5)
    assert differences(density(vector), of_pymc(density.split(vector))) < 1e-9


@pytest.mark.parametrize("model", models.NOT_SPLIT, ids=lambda one: one.__name__)
def test_a_model_that_does_not_split_is_refused_by_its_variable(module_ranks, model):
    if module_ranks == 1:
        pytest.skip("one rank splits nothing")
    with pytest.raises(ValueError, match="does not split along shard='obs'") as caught:
        compile_logp_dlogp(model(), shard="obs")
    assert f"'{models.NOT_SPLIT[model]}': " in str(caught.value)


def test_arrays_that_have_the_length_by_chance_are_named(module_ranks):
    if module_ranks == 1:
        pytest.skip("one rank splits nothing")
    with pm.Model(coords={"obs": range(models.N)}) as model:
        groups = pm.Normal("groups", pm.Data("of_groups", models.Y + 1), shape=models.N)
        pm.Normal(
            "y",
            groups[np.random.default_rng(1).integers(0, models.N, models.N)],
            observed=models.Y,
            dims="obs",
        )
    with pytest.raises(
        ValueError, match=r"rows of .* gathered[\s\S]* of length 103 were split.*: .*of_groups"
    ):
        compile_logp_dlogp(model, shard="obs")


def test_out_of_bounds_is_minus_infinity_as_in_pymc(module_ranks):
    with pm.Model(coords={"obs": range(4)}) as model:
        mean = pm.Normal("mean")
        pm.Exponential("y", lam=mean, observed=[1.0, 2, 3, 4], dims="obs")
    of_pymc = model.compile_logp(mode=array_mode())
    for density in (compile_logp_dlogp(model), compile_logp_dlogp(model, shard="obs")):
        assert density([-1.0])[0] == -np.inf == of_pymc({"mean": np.array(-1.0)})
        assert density([1.0])[0] == pytest.approx(of_pymc({"mean": np.array(1.0)}))


def test_one_component_out_of_bounds_is_minus_infinity_as_in_pymc(module_ranks):
    with pm.Model(coords={"obs": range(3)}) as model:
        scale = pm.Normal("scale", shape=2)
        pm.NormalMixture("y", w=[0.5, 0.5], mu=[0.0, 1.0], sigma=scale, observed=[0.0, 1.0, 2.0], dims="obs")
    of_pymc = model.compile_logp(mode=array_mode())
    with pytest.warns(synk.SynkWarning, match="it is so at none of 10 initial points"):
        split = compile_logp_dlogp(model, shard="obs")
    for density in (compile_logp_dlogp(model), split):
        assert density([1.0, -1.0])[0] == -np.inf == of_pymc({"scale": np.array([1.0, -1.0])})
        assert density([1.0, 0.5])[0] == pytest.approx(of_pymc({"scale": np.array([1.0, 0.5])}))


def test_vectors_and_points_are_the_same():
    density = compile_logp_dlogp(models.regression())
    point = {"slopes": np.array([1.0, 2, 3]), "noise_log__": np.array(0.5)}
    vector = density.join(point)
    assert density.names == ("slopes", "noise_log__")
    assert vector.tolist() == [1, 2, 3, 0.5]
    assert {name: value.tolist() for name, value in density.split(vector).items()} == {
        "slopes": [1, 2, 3],
        "noise_log__": 0.5,
    }
    with pytest.raises(KeyError, match="the point has no noise_log__"):
        density.join({"slopes": np.zeros(3)})


def test_vectors_become_a_tree_of_variables_and_deterministics():
    density = compile_logp_dlogp(models.regression())
    vectors = np.arange(24.0).reshape(2, 3, 4)
    found = density.tree(vectors).posterior
    assert found["slopes"].dims == ("chain", "draw", "column")
    assert np.array_equal(found["slopes"], vectors[..., :3])
    assert np.array_equal(found["total"], vectors[..., :3].sum(axis=2))
    assert np.allclose(found["noise"], np.exp(vectors[..., 3]))
    with pytest.raises(ValueError, match=r"vectors have shape \(3, 4\), not \(chains, draws, 4\)"):
        density.tree(vectors[0])


def test_single_precision_is_compared_in_single_precision(module_ranks):
    rows = np.random.default_rng(0).normal(size=2000).astype("float32")
    with pytensor.config.change_flags(floatX="float32"), pm.Model(coords={"obs": range(2000)}) as model:
        slope, noise = pm.Normal("slope"), pm.HalfNormal("noise")
        pm.Normal("y", slope * pm.Data("x", rows, dims="obs"), noise, observed=2 * rows, dims="obs")
        alone, together = (compile_logp_dlogp(model, shard=shard) for shard in (None, "obs"))
        vector = alone.initial_point(5)
        assert differences(together(vector), alone(vector)) < 1e-4


def test_rows_of_a_dimension_that_only_data_declare_are_split(module_ranks):
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("y", slope * pm.Data("x", models.Y, dims="obs"), observed=models.Y, dims="obs")
    alone, together = (compile_logp_dlogp(model, shard=shard) for shard in (None, "obs"))
    assert differences(together([0.5]), alone([0.5])) < 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [(1 + 1e-8, "the ranks together are off by"), (np.inf, "are finite where one process")],
)
def test_ranks_that_compute_something_else_are_found_out(change, message):
    prepared = Prepared(models.normal_mean())
    right = prepared.here()
    prepared._check(right)

    def wrong(vector):
        value, gradient = right(vector)
        return value, gradient * change

    with pytest.raises(synk.SynkError, match=message):
        prepared._check(wrong)


def test_what_is_finite_nowhere_is_compared_where_it_is_finite_and_told():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Potential("bound", pm.math.switch(mean > 50, 0.0, -np.inf))
    prepared = Prepared(model)
    right = prepared.here()
    with pytest.warns(synk.SynkWarning, match="finite: it is so at none of 10 initial points"):
        prepared._check(right)
    with pytest.raises(synk.SynkError, match="off by"):
        prepared._check(lambda vector: (-np.inf, right(vector)[1] + 1))


# --- bad input ---------------------------------------------------------------------------------------------


def test_a_changed_model_is_told():
    model = models.regression()
    density = compile_logp_dlogp(model)
    with model:
        pm.set_data({"x": models.X + 1})
    with pytest.raises(synk.SynkStateError, match="x: changed since the model was compiled"):
        density(np.zeros(4))
    density = compile_logp_dlogp(model)
    with model:
        pm.Normal("another")
    with pytest.raises(synk.SynkStateError, match="another: changed"):
        density(np.zeros(4))


def test_a_vector_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\), but the model takes \(4,\)"):
        compile_logp_dlogp(models.regression())(np.zeros(3))


@pytest.mark.parametrize(
    ("shard", "kind", "message"),
    [
        ("row", ValueError, r"shard='row' is no dimension of the model; it has 'obs', 'column'"),
        (2, TypeError, "shard=2 is neither True nor the name"),
    ],
)
def test_a_wrong_dimension_is_refused(module_ranks, shard, kind, message):
    with pytest.raises(kind, match=message):
        compile_logp_dlogp(models.regression(), shard=shard)


def test_a_dimension_without_data_is_refused(module_ranks):
    with pm.Model(coords={"obs": range(3)}) as model:
        pm.Normal("effects", dims="obs")
    with pytest.raises(ValueError, match="no data has this dimension, only 'effects'"):
        compile_logp_dlogp(model, shard="obs")
    with pytest.raises(ValueError, match="shard=True: the model has no observed data"):
        compile_logp_dlogp(model, shard=True)


def test_what_has_no_gradient_is_refused():
    with pm.Model() as model:
        pm.Poisson("count", 3)
    with pytest.raises(NotImplementedError, match="count: discrete variables have no gradient"):
        compile_logp_dlogp(model)
    with pm.Model() as model:
        pm.Data("x", [1.0])
    with pytest.raises(pm.exceptions.SamplingError, match="no free variables"):
        compile_logp_dlogp(model)


def test_nan_in_data_is_refused_by_name_and_place():
    with pm.Model() as model:
        mean = pm.Normal("mean")
        pm.Normal("y", mean * pm.Data("x", np.ones((2, 2))), observed=np.zeros((2, 2)))
        pm.set_data({"x": [[1.0, 2.0], [np.nan, 1.0]]})
    with pytest.raises(ValueError, match=r"x of shape \(2, 2\) has 1 NaN, the first at \(1, 0\)"):
        compile_logp_dlogp(model)


def test_ragged_lengths_are_refused_by_the_variable():
    with pm.Model() as model:
        slope = pm.Normal("slope")
        pm.Normal("y", slope * pm.Data("x", np.ones(5)), observed=pm.Data("observed", np.zeros(5)))
        pm.set_data({"x": np.ones(6)})
    with pytest.raises(ValueError, match=r"'y': data and parameters do not fit each other: .*\(5,\), \(6,\)"):
        compile_logp_dlogp(model)


def test_random_rows_are_refused():
    with pm.Model() as model:
        x, y = pm.Minibatch(models.X[:, 0], models.Y, batch_size=10)
        slope = pm.Normal("slope")
        pm.Normal("y", slope * x, observed=y, total_size=models.N)
    with pytest.raises(NotImplementedError, match=r"draws random numbers, as with pm\.Minibatch"):
        compile_logp_dlogp(model)
