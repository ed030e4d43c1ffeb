import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.dispatch.random import copy_generator

SHAPE = (400, 500)


def sample(variable_of, dtype, n_calls=1, mode=None):
    """Draw from ``variable_of(rng) -> (next_rng, variable)`` with seed 5; return the last draw."""
    rng = pytensor.shared(np.random.default_rng(5))
    next_rng, variable = variable_of(rng)
    function = pytensor.function([], variable, updates={rng: next_rng}, mode=mode or array_mode())
    draws = [function() for _ in range(n_calls)]
    assert draws[-1].dtype == dtype
    return draws[-1]


def rv(name, *parameters, size=SHAPE, **keywords):
    function = getattr(pt.random, name)
    return lambda rng: function(*parameters, size=size, rng=rng, return_next_rng=True, **keywords)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_bernoulli(p):
    x = sample(rv("bernoulli", p), "int64")
    assert x.shape == SHAPE
    assert set(np.unique(x)) <= {0, 1}
    assert abs(x.mean() - p) < 0.01


def test_parameters_give_the_shape():
    p = np.linspace(0, 1, 5)
    x = sample(rv("bernoulli", p, size=None), "int64")
    assert x.shape == (5,)
    assert x[0] == 0
    assert x[-1] == 1
    assert sample(rv("normal", p, 1.0, size=None, dtype="float32"), "float32").shape == (5,)
    assert sample(rv("uniform", size=None, dtype="float32"), "float32").shape == ()


COVARIANCE = np.array([[2.0, 0.3], [0.3, 1.0]])
DRAWN_AS_BY_PYTENSOR = {
    "uniform": (-1.0, 2.0),
    "normal": (1.0, 2.0),
    "integers": (0, 9),
    "categorical": ([0.2, 0.3, 0.5],),
    "multinomial": (5, [0.2, 0.3, 0.5]),
    "dirichlet": ([0.2, 1.0, 3.0],),
    "multivariate_normal": ([1.0, 2.0], COVARIANCE),
    "beta": (2.0, 3.0),
    "binomial": (9, 0.3),
    "betabinom": (9, 2.0, 3.0),
    "cauchy": (0.0, 1.0),
    "chisquare": (3.0,),
    "exponential": (2.0,),
    "geometric": (0.3,),
    "gengamma": (2.0, 1.0, 3.0),
    "gumbel": (0.0, 2.0),
    "halfcauchy": (0.0, 1.0),
    "halfnormal": (0.0, 1.0),
    "hypergeometric": (10, 20, 5),
    "invgamma": (2.0, 3.0),
    "laplace": (0.0, 1.0),
    "logistic": (0.0, 1.0),
    "lognormal": (0.0, 1.0),
    "nbinom": (5, 0.4),
    "pareto": (2.0, 1.0),
    "poisson": (3.0,),
    "t": (5.0, 0.0, 1.0),
    "triangular": (0.0, 0.5, 1.0),
    "truncexpon": (2.0, 0.0, 1.0),
    "vonmises": (0.0, 1.0),
    "wald": (1.0, 2.0),
    "weibull": (2.0,),
}


@pytest.mark.parametrize("name", DRAWN_AS_BY_PYTENSOR)
@pytest.mark.parametrize(
    ("batch", "size"), [((), None), ((), (3, 2)), ((2,), (3, 2)), ((3, 1), None), (None, (3, 2))]
)
def test_distributions_by_name_draw_the_numbers_of_pytensor(name, batch, size):
    parameters = DRAWN_AS_BY_PYTENSOR[name]
    if batch:  # the first parameter gets axes of its own
        parameters = (np.broadcast_to(parameters[0], batch + np.shape(parameters[0])), *parameters[1:])
    if batch is None:  # all of them, of length one
        parameters = [np.broadcast_to(p, (1, 1, *np.shape(p))) for p in parameters]
    variable = rv(name, *parameters, size=size)
    mode, reference = Mode(ArrayLinker(), None), Mode("py", None)  # rewriting takes most of the time
    with pytensor.config.change_flags(floatX="float64"):
        dtype = variable(pytensor.shared(np.random.default_rng()))[1].dtype
        expected = sample(variable, dtype, 2, reference)
        result = sample(variable, dtype, 2, mode)
    np.testing.assert_array_equal(result, expected, strict=True)


@pytest.mark.parametrize(
    "variable",
    [
        rv("gamma", 2.0, scale=1.5),
        rv("integers", 3, 300, dtype="int32"),
        rv("integers", np.arange(3), 300, size=(4, 3), dtype="uint32"),
        rv("permutation", np.arange(7), size=None),
        rv("permutation", 9, size=None),
        rv("permutation", np.arange(6).reshape(2, 3), size=(3,)),
        rv("categorical", np.full((40, 20), 0.05), size=(3, 40)),
        rv("categorical", np.full(20, 0.05)),
        rv("choice", np.arange(7), size=3, replace=False),
        rv("choice", np.arange(6).reshape(3, 2), size=2, replace=False, p=[0.5, 0.25, 0.25]),
        rv("choice", np.arange(7), size=(3, 2)),
    ],
)
def test_variables_draw_the_numbers_of_pytensor(variable):
    reference = Mode("py", "fast_compile")
    dtype = variable(pytensor.shared(np.random.default_rng()))[1].dtype
    np.testing.assert_array_equal(sample(variable, dtype, 2), sample(variable, dtype, 2, reference))


def test_a_shared_generator_that_is_updated_is_not_copied():
    rng = pytensor.shared(np.random.default_rng(1), borrow=True)
    own = rng.get_value(borrow=True)
    next_rng, x = pt.random.uniform(size=3, rng=rng, return_next_rng=True)
    function = pytensor.function([], x, updates={rng: next_rng}, mode=array_mode())
    function()
    assert rng.get_value(borrow=True) is own


def test_numbers_and_states_are_those_of_any_mode():
    bare = Mode(ArrayLinker(), RewriteDatabaseQuery(include=["minimum_compile"]))
    for variable in [
        rv("bernoulli", 0.3),
        rv("normal", 1.0, dtype="float32"),
        rv("integers", 9, dtype="int8"),
    ]:
        dtype = variable(pytensor.shared(np.random.default_rng()))[1].dtype
        # The third draw depends on the states after the first two.
        np.testing.assert_array_equal(sample(variable, dtype, 3), sample(variable, dtype, 3, bare))


def test_draws_for_another_array_module_are_reported(device):
    rng = pytensor.shared(np.random.default_rng(1))
    _, x = pt.random.normal(size=3, rng=rng, return_next_rng=True)
    draw = array_funcify(x.owner.op, x.owner, device)
    assert draw.host_nodes == (x.owner,)
    _, value = draw(np.random.default_rng(1), np.array([3]), np.zeros(1), np.ones(1))
    assert isinstance(value, device.ndarray)
    np.testing.assert_array_equal(value.get(), np.random.default_rng(1).normal(size=3))


def test_generator_advances_only_where_the_graph_says_so():
    generator = np.random.default_rng(1)
    rng = pytensor.shared(generator, borrow=True)
    next_rng, x = pt.random.uniform(size=3, rng=rng, return_next_rng=True)
    y = pt.random.uniform(size=3, rng=next_rng, return_next_rng=True)[1]
    still = pytensor.function([], [x, y], mode=array_mode())
    (a, b), (c, d) = still(), still()
    np.testing.assert_array_equal([a, b], [c, d])
    assert not np.array_equal(a, b)
    moving = pytensor.function([], x, updates={rng: next_rng}, mode=array_mode())
    assert not np.array_equal(moving(), moving())


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_copied_generator_continues_alike_and_apart(bits):
    generator = np.random.Generator(bits(3))
    generator.random(5, "float32")
    twin = copy_generator(generator)
    np.testing.assert_array_equal(twin.random(4), copy_generator(generator).random(4))
    assert twin.bit_generator is not generator.bit_generator
    np.testing.assert_array_equal(twin.random(4), [generator.random() for _ in range(8)][4:])
