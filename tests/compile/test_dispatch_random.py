import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synk.compile import array_mode
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform(dtype):
    x = sample(rv("uniform", -1.0, 3.0, dtype=dtype), dtype)
    assert x.shape == SHAPE
    assert x.min() >= -1
    assert x.max() < 3
    assert abs(x.mean() - 1) < 0.02
    assert abs(x.std() - 4 / 12**0.5) < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal(dtype):
    x = sample(rv("normal", 2.0, 0.5, dtype=dtype), dtype)
    assert x.shape == SHAPE
    assert abs(x.mean() - 2) < 0.01
    assert abs(x.std() - 0.5) < 0.01


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


@pytest.mark.parametrize(
    "variable",
    [
        rv("normal", 1.0, 2.0, dtype="float64"),
        rv("gamma", 2.0, scale=1.5),
        rv("poisson", 3.0),
        rv("integers", 0, 9),
        rv("permutation", np.arange(7), size=None),
        rv("laplace", 0.0, 1.0),
        rv("categorical", [0.2, 0.8], size=50),
    ],
)
def test_others_draw_what_pytensor_draws(variable):
    reference = pytensor.compile.mode.Mode("py", "fast_compile")
    expected = sample(variable, variable(pytensor.shared(np.random.default_rng()))[1].dtype, 2, reference)
    np.testing.assert_array_equal(sample(variable, expected.dtype, 2), expected)


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
