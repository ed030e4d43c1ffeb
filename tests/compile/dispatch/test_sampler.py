from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from support.slow import slow
from synk.compile import ArrayLinker, array_funcify, array_mode
from synk.compile.dispatch.sampler import bernoulli_mask, same_numbers, sampler, unbatched
from synk.compile.native.bit_generators import copy_generator


def op_of(name, *parameters, **keywords):
    rng = pt.random.type.random_generator_type("rng")
    return getattr(pt.random, name)(*parameters, rng=rng, return_next_rng=True, **keywords)[1].owner.op


def draw(name, *parameters, size=(400, 500), **keywords):
    parameters = [np.asarray(parameter) for parameter in parameters]
    return sampler(op_of(name, *parameters, **keywords))(np.random.default_rng(5), size, *parameters)


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_share_of_ones(p, dtype):
    mask = bernoulli_mask(np.random.default_rng(5), np.asarray(p, dtype), (1000, 501))
    p = float(np.asarray(p, dtype))
    assert abs(mask.mean() - p) <= 5 * (p * (1 - p) / mask.size) ** 0.5
    assert p not in (0, 1) or mask.mean() == p


def test_share_of_ones_by_parameter():
    p = np.linspace(0, 1, 5)
    share = bernoulli_mask(np.random.default_rng(5), p, (100_000, 5)).mean(axis=0)
    np.testing.assert_allclose(share, p, atol=0.01)
    assert share[0] == 0
    assert share[-1] == 1


def test_neighbours_are_independent():
    mask = bernoulli_mask(np.random.default_rng(5), np.asarray(0.5), (1_000_000,))
    for lag in (1, 2, 3, 4):
        assert abs((mask[lag:] == mask[:-lag]).mean() - 0.5) < 0.0025


@pytest.mark.parametrize("p", [2.0**-40, 0.5, 0.3, 1.0])
def test_all_bits_of_the_probability_count(p):
    """Words that equal the first 32 bits of ``p``: more random bits decide."""
    first, rest = divmod(min(p, 1 - 2.0**-53) * 2.0**32, 1.0)

    def integers(low, high, count, dtype, endpoint):
        return np.full(count, int(first) * (2**32 + 1), dtype)

    for uniform in (0.0, rest - 2.0**-30, min(rest + 2.0**-30, 1 - 2.0**-53)):
        generator = SimpleNamespace(integers=integers, random=lambda shape, u=uniform: np.full(shape, u))
        assert bernoulli_mask(generator, np.asarray(p), (3,)).tolist() == [uniform < rest or p == 1] * 3


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan])
def test_what_is_no_probability_is_refused(p):
    with pytest.raises(ValueError, match="between 0 and 1"):
        bernoulli_mask(np.random.default_rng(5), np.asarray(p), (2,))


def test_odd_and_empty_sizes():
    for shape in ((), (1,), (7,), (0, 3), (3, 5)):
        assert bernoulli_mask(np.random.default_rng(5), np.asarray(0.5), shape).shape == shape


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_all_widths(dtype):
    x = draw("integers", 3, 90, dtype=dtype)
    assert x.dtype == dtype
    assert (x.min(), x.max()) == (3, 89)
    assert abs(x.mean() - 46) < 0.3


def test_float16():
    for name in ("uniform", "normal"):
        x = draw(name, 1.0, 3.0, dtype="float16")
        assert x.dtype == "float16"
        assert abs(x.mean(dtype="float64") - {"uniform": 2, "normal": 1}[name]) < 0.03


def test_negative_deviation_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        draw("normal", 0.0, -1.0, dtype="float32")


def test_categories_in_too_small_a_size_are_refused():
    with pytest.raises(ValueError, match="too small"):
        draw("categorical", np.full((3, 2), 0.5), size=(1,))


@pytest.mark.parametrize(
    ("name", "dtype", "same"),
    [
        ("uniform", "float64", True),
        ("uniform", "float32", False),
        ("normal", "float16", False),
        ("beta", "float32", True),
        ("integers", "int64", True),
        ("integers", "int8", False),
        ("bernoulli", "int64", False),
    ],
)
def test_which_draw_the_numbers_of_pytensor(name, dtype, same):
    parameters = {"integers": (0, 9), "bernoulli": (0.5,)}.get(name, (1.0, 2.0))
    assert same_numbers(op_of(name, *parameters, dtype=dtype)) == same


def test_batch_axes_of_length_one_go():
    normal, whole = op_of("normal"), op_of("permutation", np.arange(3))
    one, many = np.ones((1, 1)), np.ones((1, 4))
    assert [p.shape for p in unbatched(normal, (3, 4), [one, many])] == [(), (1, 4)]
    assert [p.shape for p in unbatched(normal, (4,), [one, one])] == [(1, 1), (1, 1)]
    assert [p.shape for p in unbatched(normal, None, [one, one])] == [(1, 1), (1, 1)]
    assert [p.shape for p in unbatched(whole, (3,), [one])] == [(1, 1)]
    choices = op_of("categorical", [0.5, 0.5])
    assert [p.shape for p in unbatched(choices, (3, 4), [np.ones((1, 1, 2))])] == [(2,)]


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
    ("batch", "size"),
    [slow((), None), slow((), (3, 2)), ((2,), (3, 2)), slow((3, 1), None), (None, (3, 2))],
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
        rv("categorical", np.full(20, 0.05), size=(100, 50)),
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


def test_draws_without_a_kernel_are_made_on_the_host_for_another_array_module(device):
    rng = pytensor.shared(np.random.default_rng(1))
    _, x = pt.random.laplace(size=3, rng=rng, return_next_rng=True)
    draw = array_funcify(x.owner.op, x.owner, device)
    assert draw.host_nodes == (x.owner,)
    _, value = draw(np.random.default_rng(1), np.array([3]), np.zeros(1), np.ones(1))
    assert isinstance(value, device.ndarray)
    np.testing.assert_array_equal(value.get(), np.random.default_rng(1).laplace(size=3))


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
